"""The supervisor's tables and verbs: executions by channel, the reaper, and what the host says."""

from __future__ import annotations

import gc
import os
from errno import EAGAIN

from . import kernel, requests, wire
from .connection import Connection
from .execution import Execution, Owner, discard
from .files import Files
from .lean import deque
from .processes import SIGKILL, OutOfMemoryKills, Tags, TreeKill, is_stopped, send, tagged
from .spawning import SpawnThread, StartFailed
from .streams import Held

TYPE_CHECKING = False
if TYPE_CHECKING:
    from resource import struct_rusage

    from .loop import Loop, Timer
    from .spawning import Environment

MAX_HELD_PIPES = 256
MAX_REMEMBERED = 1024
STUCK_START_SECONDS = 0.5
MEMORY_LOOK_SECONDS = 5.0
"""How often kernel out-of-memory kills are counted, so that starts need not read the count."""


class Supervisor(Owner):
    """Everything is bounded: executions, remembered ids, pipes kept for background processes."""

    def __init__(self, loop: Loop, socket_path: bytes, environment: Environment) -> None:
        self.loop = loop
        self._environment = environment
        self.held = Held()
        self.outbox = self._connection = Connection(
            loop, socket_path, self._connected, self._frame, self._dropped
        )
        self.spawner = SpawnThread(loop, self._start_reported)
        self._files = Files(loop, self._connection)
        self._boot = os.urandom(16).hex().encode()
        self._tags = Tags()
        self._memory = OutOfMemoryKills()
        self._executions: dict[int, Execution] = {}
        self._by_id: dict[bytes, Execution] = {}
        self._by_pid: dict[int, Execution] = {}
        self._forgotten: set[int] = set()
        self._remembered: dict[bytes, None] = {}
        self._live_tags: set[int] = set()
        self._held_pipes: deque[int] = deque()
        self._strangers: dict[int, int] = {}
        self._sweep: TreeKill | None = None
        self._unanswered: set[int] | None = None
        self._killing: set[Execution] = set()
        self._stuck: Timer | None = None
        self._tidied = 0
        self._verbs = {
            wire.START: self._start,
            wire.STDIN: self._stdin,
            wire.STDIN_END: self._stdin_end,
            wire.SIGNAL: self._signal,
            wire.CANCEL: self._cancel,
            wire.RESIZE: self._resize,
            wire.ACK: self._acknowledge,
            wire.RECORDED: self._recorded,
        }

    def begin(self) -> None:
        """Dial for the first time."""
        self._look_at_memory()
        self._connection.dial()

    def begin_anew(self) -> None:
        """Drop the connection; the next handshake puts both sides right."""
        self._connection.drop()

    # The connection

    def _connected(self) -> None:
        send_control = self._connection.control
        send_control(wire.control(wire.HELLO, 0, wire.VERSION, self._boot))
        self._unanswered = set(self._executions)
        for execution in self._executions.values():
            send_control(execution.listed())
        send_control(wire.frame(wire.LISTED_ALL))

    def _dropped(self) -> None:
        self._unanswered = None
        self._files.drop_all()

    def _frame(self, kind: int, flag: int, channel: int, offset: int, payload: bytes) -> None:
        if self._unanswered is not None:
            self._handshake(kind, channel, payload)
        elif kind in self._verbs:
            self._verbs[kind](flag, channel, offset, payload)
        else:
            self._files.frame(kind, channel, offset, payload)

    def _handshake(self, kind: int, channel: int, payload: bytes) -> None:
        unanswered = self._unanswered or set()
        if kind == wire.WELCOME and not unanswered:
            if wire.number(wire.fields(payload, 1)[0]) != wire.VERSION:
                raise wire.ProtocolError("the host speaks another version")
            self._unanswered = None
            self._connection.established()
            for execution in self._executions.values():
                execution.welcomed()
        elif kind in (wire.RESUME, wire.FORGET) and channel in unanswered:
            unanswered.discard(channel)
            if kind == wire.RESUME:
                out, err = wire.fields(payload, 2)
                self._executions[channel].resume(wire.number(out), wire.number(err))
            else:
                self._forget(self._executions[channel])
        else:
            raise wire.ProtocolError("out of turn in the handshake")

    # Verbs

    def _start(self, _flag: int, channel: int, _offset: int, payload: bytes) -> None:
        exec_id = payload[wire.START_HEAD.size :].partition(b"\0")[0]
        known = self._executions.get(channel)
        if known is not None:
            if known.exec_id != exec_id:
                raise wire.ProtocolError("a channel was used twice")
            known.tell_started()
            return
        try:
            if exec_id in self._by_id or exec_id in self._remembered:
                raise StartFailed(wire.STAGE_SPEC, 0, "an execution of this id was started before")
            if len(self._executions) >= wire.MAX_EXECUTIONS:
                text = f"{wire.MAX_EXECUTIONS} executions are open in this container"
                raise StartFailed(wire.STAGE_SPEC, EAGAIN, text)
            request = requests.decode(payload, self._environment)
        except StartFailed as refused:
            message = refused.message.encode()
            self.outbox.control(wire.control(wire.REFUSED, channel, refused.number, message))
            return
        tag = self._tags.new(self._live_tags)
        self._live_tags.add(tag)
        execution = Execution(self, channel, tag, request)
        self._executions[channel] = self._by_id[exec_id] = execution
        if self._stuck is None:
            self._watch_starts()
        execution.begin()

    def _stdin(self, _flag: int, channel: int, offset: int, payload: bytes) -> None:
        execution = self._executions.get(channel)
        if execution is not None and execution.input is not None:
            execution.input.receive(offset, payload)

    def _stdin_end(self, _flag: int, channel: int, offset: int, _payload: bytes) -> None:
        execution = self._executions.get(channel)
        if execution is not None and execution.input is not None:
            execution.input.finish(offset)

    def _signal(self, _flag: int, channel: int, offset: int, _payload: bytes) -> None:
        execution = self._executions.get(channel)
        if not 1 <= offset <= 64:
            raise wire.ProtocolError("no such signal")
        if execution is not None:
            execution.signal(offset)

    def _cancel(self, _flag: int, channel: int, _offset: int, payload: bytes) -> None:
        grace = wire.number(wire.fields(payload, 1)[0], -1, wire.MAX_GRACE_MS)
        execution = self._executions.get(channel)
        if execution is not None:
            execution.cancel(None if grace < 0 else grace / 1000)

    def _resize(self, _flag: int, channel: int, _offset: int, payload: bytes) -> None:
        rows, columns = (wire.number(value, 1, 65_535) for value in wire.fields(payload, 2))
        execution = self._executions.get(channel)
        if execution is not None:
            execution.resize(rows, columns)

    def _acknowledge(self, flag: int, channel: int, offset: int, _payload: bytes) -> None:
        execution = self._executions.get(channel)
        if execution is not None and flag in execution.outputs:
            execution.outputs[flag].acknowledge(offset)

    def _recorded(self, _flag: int, channel: int, _offset: int, _payload: bytes) -> None:
        execution = self._executions.get(channel)
        if execution is not None:
            if execution.state != wire.OVER:
                raise wire.ProtocolError("recorded before it ended")
            self._remove(execution)

    def _forget(self, execution: Execution) -> None:
        execution.forget()
        if execution.state == wire.OVER:
            self._remove(execution)
        else:
            self._forgotten.add(execution.channel)
            execution.cancel(0.0)

    def _remove(self, execution: Execution) -> None:
        execution.forget()
        self._executions.pop(execution.channel, None)
        self._by_id.pop(execution.exec_id, None)
        self._forgotten.discard(execution.channel)
        self._live_tags.discard(execution.tag)
        self._remembered[execution.exec_id] = None
        if len(self._remembered) > MAX_REMEMBERED:
            del self._remembered[next(iter(self._remembered))]

    # What executions report

    def running(self, execution: Execution, pid: int) -> None:
        self._by_pid[pid] = execution

    def killing(self, execution: Execution) -> None:
        self._killing.add(execution)

    def over(self, execution: Execution) -> None:
        if execution.channel in self._forgotten:
            self.loop.soon(lambda: self._remove(execution))
        if execution.root and not self._root_runs():
            self._sweep_up()

    def hold(self, fd: int) -> None:
        if len(self._held_pipes) >= MAX_HELD_PIPES:
            oldest = self._held_pipes.popleft()
            self.loop.unwatch(oldest)
            os.close(oldest)
        self._held_pipes.append(fd)
        discard(self.loop, fd, self._released)

    def _released(self, fd: int) -> None:
        self._held_pipes.remove(fd)
        os.close(fd)

    def memory_kills(self) -> int:
        return self._memory.known()

    def _look_at_memory(self) -> None:
        self._memory.look()
        if not self._executions and self._tidied != self.spawner.completed:
            self._tidied = self.spawner.completed
            gc.collect()
            kernel.give_memory_back()
        self.loop.later(MEMORY_LOOK_SECONDS, self._look_at_memory)

    def claim_memory_kill(self, since: int) -> bool:
        return self._memory.claim(since)

    def _root_runs(self) -> bool:
        return any(
            execution.root and execution.state != wire.OVER
            for execution in self._executions.values()
        )

    def _sweep_up(self) -> None:
        """Kill what root commands stripped of its tag, now that none of them is left."""

        def find() -> list[int]:
            return [] if self._root_runs() else self._tags.untagged()

        def done(_all_dead: bool) -> None:
            self._sweep = None

        if self._sweep is None:
            self._sweep = TreeKill(self.loop, find, 0.0, done)
            self._sweep.start()

    # Reaping

    def reap(self) -> None:
        """Collect every dead child. A pid that nobody knows may belong to a start that is under
        way; it is left (so the pid cannot be given away again) until that start has reported."""
        died = False
        while True:
            if self.spawner.submitted == self.spawner.completed:
                try:
                    pid, status, usage = os.wait4(-1, os.WNOHANG)
                except ChildProcessError:
                    break
                if pid == 0:
                    break
                died = True
                self._strangers.pop(pid, None)
                self._reaped(self._by_pid.pop(pid, None), status, usage)
                continue
            try:
                waiting = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                break
            if waiting is None:
                break
            pid = waiting.si_pid
            execution = self._by_pid.pop(pid, None)
            if execution is None and self.spawner.submitted > self.spawner.completed:
                since = self._strangers.setdefault(pid, self.spawner.submitted)
                if since > self.spawner.completed:
                    break
            self._strangers.pop(pid, None)
            _, status, usage = os.wait4(pid, 0)
            died = True
            self._reaped(execution, status, usage)
        if died and self._killing:
            self._killing = {execution for execution in self._killing if execution.dying}
            for execution in self._killing:
                execution.look()

    def _reaped(self, execution: Execution | None, status: int, usage: struct_rusage) -> None:
        if execution is not None:
            cpu = int((usage.ru_utime + usage.ru_stime) * 1e6)
            execution.reaped(status, cpu, usage.ru_maxrss * 1024)

    def _start_reported(self) -> None:
        if self._strangers:
            self.reap()

    def _unstick(self) -> None:
        """A process of the user can stop a child that is not yet its program: kill such a child."""
        starting = [e for e in self._executions.values() if e.state == wire.STARTING]
        for execution in starting:
            for pid in tagged(execution.tag):
                if pid not in self._by_pid and is_stopped(pid):
                    send(pid, SIGKILL)

    def _watch_starts(self) -> None:
        completed = self.spawner.completed

        def check() -> None:
            self._stuck = None
            if self.spawner.submitted == self.spawner.completed:
                return
            if self.spawner.completed == completed:
                self._unstick()
            self._watch_starts()

        self._stuck = self.loop.later(STUCK_START_SECONDS, check)
