"""One execution inside the container: its process tree, pipes, deadline and outcome."""

from __future__ import annotations

import os
from fcntl import ioctl
from struct import pack, unpack
from time import monotonic

from . import wire
from .processes import TreeKill, send, tagged
from .spawning import Command, StartFailed
from .streams import Input, Output, Terminal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from .loop import Loop, Timer
    from .spawning import SpawnThread
    from .streams import Held, Outbox

TELL_SECONDS = 0.002
"""How long the word that a command runs may wait for the word that it has ended: many are that
short, and the host then wakes up once."""
DRAIN_SECONDS = 0.25
"""How long after the leader's exit its output pipes may still be held by others."""
_FIONREAD, _TIOCSWINSZ = 0x541B, 0x5414


class Request:
    """A decoded START."""

    __slots__ = ("command", "exec_id", "grace", "size", "stdin", "terminal", "timeout")

    def __init__(
        self,
        exec_id: bytes,
        command: Command,
        stdin: bool,
        terminal: bool,
        size: tuple[int, int],
        timeout: float | None,
        grace: float,
    ) -> None:
        self.exec_id, self.command, self.stdin, self.terminal = exec_id, command, stdin, terminal
        self.size, self.timeout, self.grace = size, timeout, grace


class Owner:
    """What an execution needs of the supervisor."""

    loop: Loop
    outbox: Outbox
    held: Held
    spawner: SpawnThread

    def running(self, execution: Execution, pid: int) -> None:
        """The execution's leader has this pid now."""

    def killing(self, execution: Execution) -> None:
        """The execution's tree is about to be killed."""

    def over(self, execution: Execution) -> None:
        """The execution has its outcome."""

    def hold(self, fd: int) -> None:
        """Keep a pipe open that a background process still writes to, and discard its bytes."""

    def memory_kills(self) -> int:
        """Kernel out-of-memory kills so far."""
        return 0

    def claim_memory_kill(self, since: int) -> bool:
        """Whether such a kill happened since, and is not yet somebody else's."""
        return False


class Execution:
    """From START until RECORDED. All methods run in the loop's thread."""

    def __init__(self, owner: Owner, channel: int, tag: int, request: Request) -> None:
        self._owner, self.channel, self.tag = owner, channel, tag
        self.exec_id, self.root = request.exec_id, request.command.root
        self._request = request
        self.state = wire.STARTING
        self.pid = 0
        self.outputs: dict[int, Output] = {}
        self.input: Input | None = None
        self._terminal: Terminal | None = None
        self._to_close: list[int] = []
        self._null: int = -1
        self._deadline: Timer | None = None
        self._drain: Timer | None = None
        self._telling: Timer | None = None
        self._tree_gone = False
        self._kill: TreeKill | None = None
        self._reason = 0
        self._kill_grace = 0.0
        self._survivors = False
        self._status: int | None = None
        self._memory_kills = owner.memory_kills()
        self._cpu_us = self._rss = 0
        self._began = monotonic()
        self._pipe_held = False
        self._ended: bytes | None = None
        self._told = False

    # Starting

    def begin(self) -> None:
        """Make the pipes and ask for the process."""
        command = self._request.command
        command.tag = self.tag
        try:
            if self._request.terminal:
                self._open_terminal(command)
            else:
                self._open_pipes(command)
        except OSError as failed:
            stage = wire.STAGE_PTY if self._request.terminal else wire.STAGE_PIPES
            self._start_failed(StartFailed(stage, failed.errno or 0, failed.strerror or ""))
            return
        self._owner.spawner.submit(command, self._spawned)

    def _open_pipes(self, command: Command) -> None:
        fds = self._to_close
        stdin = 0  # the supervisor's own is /dev/null
        if self._request.stdin:
            stdin, write = os.pipe2(os.O_CLOEXEC)
            fds.append(stdin)
            os.set_blocking(write, False)
            self.input = Input(self._owner.loop, self._owner.outbox, self.channel, write, False)
        for number in (wire.STDOUT, wire.STDERR):
            out, into = os.pipe2(os.O_CLOEXEC)
            fds.append(into)
            os.set_blocking(out, False)
            self.outputs[number] = self._output(number, out)
        command.streams = (stdin, fds[-2], fds[-1])

    def _output(self, number: int, fd: int, terminal: Terminal | None = None) -> Output:
        owner = self._owner
        watch = terminal.watch_output if terminal else None
        return Output(
            owner.loop, owner.outbox, owner.held, self.channel, number, fd, self._changed, watch
        )

    def _open_terminal(self, command: Command) -> None:
        master = os.open("/dev/ptmx", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC | os.O_NONBLOCK)
        terminal = self._terminal = Terminal(self._owner.loop, master)
        ioctl(master, 0x40045431, pack("i", 0))  # TIOCSPTLCK
        number = unpack("i", ioctl(master, 0x80045430, b"\0\0\0\0"))[0]  # TIOCGPTN
        path = b"/dev/pts/%d" % number
        if not command.root:
            os.chown(path, 1000, -1)
        self.resize(*self._request.size)
        # Held until the command has it, so that the master does not report a hang-up before.
        self._to_close = [os.open(path, os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)]
        command.terminal = path
        output = self._output(wire.STDOUT, master, terminal)
        self.outputs[wire.STDOUT] = terminal.output = output
        self.input = terminal.input = Input(
            self._owner.loop,
            self._owner.outbox,
            self.channel,
            master,
            True,
            terminal.watch_input,
        )

    def _close_childs(self) -> None:
        for fd in self._to_close:
            os.close(fd)
        self._to_close = []

    def _spawned(self, result: int | StartFailed) -> None:
        self._close_childs()
        if isinstance(result, StartFailed):
            self._start_failed(result)
            return
        self.pid = result
        self.state = wire.RUNNING
        self._began = monotonic()
        self._owner.running(self, result)
        self._telling = self._owner.loop.later(TELL_SECONDS, self.tell_started)
        if self._request.timeout is not None:
            self._deadline = self._owner.loop.later(self._request.timeout, self._timed_out)
        if self._reason:
            self._kill_tree(self._kill_grace)

    def _start_failed(self, failed: StartFailed) -> None:
        self._close_childs()
        message = failed.message or os.strerror(failed.number)
        for output in self.outputs.values():
            output.finish()
        self._close_pipes()
        self._finish(wire.START_FAILED, -1, -1, failed.stage, failed.number, message)

    def tell_started(self) -> None:
        """Tell the host that the command runs."""
        self._owner.outbox.control(wire.frame(wire.STARTED, self.channel))

    # While it runs

    def resize(self, rows: int, columns: int) -> None:
        """Set the terminal's size, if there is one."""
        if self._terminal is not None and self._terminal.is_open():
            ioctl(self._terminal.fd, _TIOCSWINSZ, pack("HHHH", rows, columns, 0, 0))

    def signal(self, number: int) -> None:
        """Signal the leader's process group; while only others are left, all of them."""
        if self.state != wire.RUNNING:
            return
        if self._status is None:
            try:
                os.killpg(self.pid, number)
            except ProcessLookupError:
                send(self.pid, number)
        else:
            for pid in tagged(self.tag):
                send(pid, number)

    def cancel(self, grace: float | None) -> None:
        """End the whole tree."""
        self._end_tree(wire.CANCELLED, self._request.grace if grace is None else grace)

    def _timed_out(self) -> None:
        self._end_tree(wire.TIMED_OUT, self._request.grace)

    def _end_tree(self, reason: int, grace: float) -> None:
        if self.state == wire.OVER:
            return
        if not self._reason and self._status is None:
            self._reason, self._kill_grace = reason, grace
        if self._kill is not None:
            self._kill.hurry(grace)
        elif self.state == wire.RUNNING:
            self._kill_tree(grace)

    def _kill_tree(self, grace: float) -> None:
        self._owner.killing(self)
        self._kill = TreeKill(self._owner.loop, lambda: tagged(self.tag), grace, self._tree_ended)
        self._kill.start()

    def _tree_ended(self, all_dead: bool) -> None:
        self._tree_gone = True
        self._survivors = not all_dead
        self._kill = None
        self._changed()

    def look(self) -> None:
        """Some process died: if the tree is being killed, see what is left of it."""
        if self._kill is not None:
            self._kill.look()

    @property
    def dying(self) -> bool:
        """Whether its tree is being killed."""
        return self._kill is not None

    # Ending

    def reaped(self, status: int, cpu_us: int, rss: int) -> None:
        """The leader is dead."""
        self._status, self._cpu_us, self._rss = status, cpu_us, rss
        if self._deadline is not None:
            self._deadline.cancel()
        if self.input is not None:
            self.input.close()
        for output in list(self.outputs.values()):
            output.drain()
        self.look()
        self._changed()
        if self.state != wire.OVER:
            self._drain = self._owner.loop.later(DRAIN_SECONDS, self._drain_over)

    def _drain_over(self) -> None:
        """Others hold a pipe: what is in it now is the last that is read."""
        self._drain = None
        for output in list(self.outputs.values()):
            if not output.eof:
                self._pipe_held = True
                output.limit(unpack("i", ioctl(output.fd, _FIONREAD, b"\0\0\0\0"))[0])

    def _changed(self) -> None:
        """Something that the end waits for has happened."""
        if self.state == wire.OVER:
            self._tell_ended()
            return
        if self._status is None or not all(output.eof for output in self.outputs.values()):
            return
        if self._reason and not self._tree_gone:
            return
        code, number = -1, -1
        if os.WIFSIGNALED(self._status):
            number, ending = os.WTERMSIG(self._status), wire.SIGNALLED
        else:
            code, ending = os.WEXITSTATUS(self._status), wire.EXITED
        if self._reason:
            ending = self._reason
        elif (number == 9 or code == 137) and self._owner.claim_memory_kill(self._memory_kills):
            ending = wire.OUT_OF_MEMORY
        message = "some processes could not be killed" if self._survivors else ""
        if self._drain is not None:
            self._drain.cancel()
        self._close_pipes()
        self._finish(ending, code, number, 0, 0, message)

    def _close_pipes(self) -> None:
        if self.input is not None:
            self.input.close()
        for output in self.outputs.values():
            if self._terminal is None:
                fd = output.take_fd()
                if fd >= 0:
                    self._owner.hold(fd)
            else:
                output.close()
        if self._terminal is not None and not self.outputs:
            os.close(self._terminal.fd)

    def _finish(
        self, ending: int, code: int, number: int, stage: int, errno: int, message: str
    ) -> None:
        self.state = wire.OVER
        if self._telling is not None:
            self._telling.cancel()
        totals = {key: output.total for key, output in self.outputs.items()}
        head = wire.ENDED_HEAD.pack(
            ending,
            code,
            number,
            stage,
            errno,
            totals.get(wire.STDOUT, 0),
            totals.get(wire.STDERR, 0),
            self._pipe_held,
            int((monotonic() - self._began) * 1e6),
            self._cpu_us,
            self._rss,
        )
        payload = head + message.encode()[:4096]
        self._ended = wire.frame(wire.ENDED, self.channel, payload=payload)
        self._owner.over(self)
        self._tell_ended()

    def _tell_ended(self) -> None:
        if self._ended is None or self._told:
            return
        if not any(output.unsent for output in self.outputs.values()):
            self._told = True
            self._owner.outbox.control(self._ended)

    # Towards the host

    def listed(self) -> bytes:
        """The frame that describes this execution after a reconnect."""
        self._told = True  # nothing is told before the host has answered
        out, err = self.outputs.get(wire.STDOUT), self.outputs.get(wire.STDERR)
        stdin = self.input
        return wire.control(
            wire.LISTED,
            self.channel,
            self.exec_id,
            self.state,
            out.first() if out else 0,
            out.total if out else 0,
            err.first() if err else 0,
            err.total if err else 0,
            stdin.received if stdin else 0,
            stdin.taken if stdin else 0,
            1 if stdin is None or stdin.closed or stdin.end >= 0 else 0,
        )

    def resume(self, out: int, err: int) -> None:
        """The host has this much; go on from there."""
        for number, offset in ((wire.STDOUT, out), (wire.STDERR, err)):
            output = self.outputs.get(number)
            if output is not None:
                output.resume_from(offset)

    def welcomed(self) -> None:
        """The handshake is over: send what is here."""
        for output in self.outputs.values():
            output.offer()
        self._told = False
        self._tell_ended()

    def forget(self) -> None:
        """Drop what is kept for the host. If the command still runs, it is killed first."""
        for output in self.outputs.values():
            output.drop()
        if self.input is not None:
            self.input.drop()
        if self._terminal is not None:
            self._terminal.forget()


def discard(loop: Loop, fd: int, closed: Callable[[int], None]) -> None:
    """Throw away what comes out of a pipe until nobody holds it; then close it."""
    null = os.open("/dev/null", os.O_WRONLY | os.O_CLOEXEC)

    def readable(_events: int) -> None:
        try:
            if os.splice(fd, null, 1_048_576):
                return
        except BlockingIOError:
            return
        except OSError:
            pass
        loop.unwatch(fd)
        os.close(null)
        closed(fd)

    loop.watch(fd, 1, readable)
