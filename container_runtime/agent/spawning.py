"""The thread that starts commands, and the environment they get.

It holds the default user's credentials, so that the kernel can make the child by vfork and no
check is made with root's rights. It never touches the loop's state: requests go in by a queue,
results come back by `Loop.post`.
"""

from __future__ import annotations

import os
from _queue import SimpleQueue
from _thread import start_new_thread
from errno import EACCES, EISDIR, ENOENT
from resource import prlimit, setrlimit

from . import kernel, wire
from .lean import SIG_DFL, signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from .loop import Loop

USER_ID = 1000
HOME = b"/workspace"
PATH = b"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
IGNORED_SIGNALS = (2, 13, 25)
"""INT, PIPE and XFSZ: ignored here, default again in commands."""
LIMITS = (7, 6, 1, 9, 0, 4)
"""RLIMIT_ numbers of open files, processes, file size, address space, CPU time, core size."""
SHELLS = (b"/bin/bash", b"/bin/sh")
HELD = b"WORKROOM_HELD_"
"""Prefix under which the engine hands over variables that the loader would obey here."""


class StartFailed(Exception):
    """A start that failed: stage, errno (0: no system call failed), message."""

    def __init__(self, stage: int, number: int, message: str) -> None:
        super().__init__(message)
        self.stage, self.number, self.message = stage, number, message


class Command:
    """What to start: everything a spawn needs, in kernel terms."""

    __slots__ = (
        "argv",
        "cwd",
        "env",
        "limits",
        "root",
        "script",
        "streams",
        "tag",
        "terminal",
    )

    def __init__(
        self,
        argv: list[bytes],
        script: bytes | None,
        env: dict[bytes, bytes],
        cwd: bytes,
        root: bool,
        limits: tuple[int, ...],
    ) -> None:
        self.argv, self.script, self.env, self.cwd = argv, script, env, cwd
        self.root, self.limits = root, limits
        self.tag = 0
        self.streams = (-1, -1, -1)
        self.terminal: bytes | None = None


class Environment:
    """The container's own variables, with what each user's commands get on top."""

    def __init__(self, own: dict[bytes, bytes]) -> None:
        with open("/proc/self/cmdline", "rb") as cmdline:
            self.interpreter = cmdline.read().split(b"\0")[:-2]
            """How this interpreter was started, up to its program's text."""
        base = {b"PATH": PATH, b"LANG": b"C.UTF-8"}
        held = {}
        for name, value in own.items():
            if name.startswith(HELD):
                held[name[len(HELD) :]] = value
            elif value or not is_loader_variable(name):
                base[name] = value
        base |= held
        names = {0: b"root", USER_ID: b"user"}
        for line in _lines(b"/etc/passwd"):
            words = line.split(b":")
            if len(words) > 3 and words[2].isdigit() and int(words[2]) in names:
                names[int(words[2])] = words[0]
        self._user = base | _identity(names[USER_ID], HOME)
        self._root = base | _identity(names[0], b"/root")

    def of(self, root: bool) -> dict[bytes, bytes]:
        """A command's variables before its own are added; not to be changed."""
        return self._root if root else self._user


def is_loader_variable(name: bytes) -> bool:
    """Whether the dynamic loader obeys a variable, so that it must not reach the supervisor."""
    return name.startswith(b"LD_") or name == b"GLIBC_TUNABLES"


def _identity(name: bytes, home: bytes) -> dict[bytes, bytes]:
    shell = next((shell for shell in SHELLS if os.path.exists(shell)), SHELLS[1])
    return {b"HOME": home, b"USER": name, b"LOGNAME": name, b"SHELL": shell}


def _lines(path: bytes) -> list[bytes]:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return []
    try:
        return os.read(fd, 262_144).split(b"\n")
    except OSError:
        return []
    finally:
        os.close(fd)


class SpawnThread:
    """Starts one command after another. `submitted` and `completed` order reaping: a dead child
    that nobody knows can only be that of a start which is still under way."""

    def __init__(self, loop: Loop, reported: Callable[[], None]) -> None:
        """`reported` is called after each `done`."""
        self._loop = loop
        self._reported = reported
        self._queue: SimpleQueue[tuple[Command, Callable[[int | StartFailed], None]]]
        self._queue = SimpleQueue()
        self._posix = kernel.Spawner(IGNORED_SIGNALS)
        self._score = os.open(b"/proc/self/oom_score_adj", os.O_RDWR | os.O_CLOEXEC)
        self._own_score = os.pread(self._score, 16, 0).strip()
        self.submitted = 0
        self.completed = 0
        start_new_thread(self._run, ())

    def submit(self, command: Command, done: Callable[[int | StartFailed], None]) -> None:
        """Start a command; `done` is called by the loop with its pid, or with what failed."""
        self.submitted += 1
        self._queue.put((command, done))

    def _run(self) -> None:
        kernel.become_user(USER_ID, USER_ID)
        kernel.forbid_tracing()
        while True:
            command, done = self._queue.get()
            result: int | StartFailed
            try:
                result = self._start(command)
            except StartFailed as failed:
                result = failed
            except OSError as failed:
                stage, number = wire.STAGE_EXEC, failed.errno or 0
                result = StartFailed(stage, number, failed.strerror or str(failed))
            except Exception as problem:
                result = StartFailed(wire.STAGE_SPEC, 0, f"{type(problem).__name__}: {problem}")
            self._finish(done, result)

    def _finish(self, done: Callable[[int | StartFailed], None], result: int | StartFailed) -> None:
        def report() -> None:
            self.completed += 1
            done(result)
            self._reported()

        self._loop.post(report)

    def _start(self, command: Command) -> int:
        if command.root:
            kernel.become_root()
            kernel.set_groups(0, command.tag)
        else:
            kernel.set_groups(command.tag)
        try:
            return self._start_as_self(command)
        finally:
            if command.root:
                kernel.set_groups()
                kernel.become_user(USER_ID, USER_ID)

    def _start_as_self(self, command: Command) -> int:
        try:
            cwd = os.open(command.cwd, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            if not os.access(command.cwd, os.X_OK):
                os.close(cwd)
                raise OSError(EACCES, os.strerror(EACCES))
        except OSError as failed:
            shown = command.cwd.decode("utf-8", "backslashreplace")
            text = f"{shown}: {failed.strerror}"
            raise StartFailed(wire.STAGE_CWD, failed.errno or 0, text) from None
        script = -1
        try:
            argv = command.argv
            if command.script is not None:
                argv, script = _shell_call(command.script)
            program = find_program(argv[0], command.env.get(b"PATH", b""), command.cwd)
            env = [name + b"=" + value for name, value in command.env.items()]
            try:
                return self._make(command, program, argv, env, cwd, script)
            except OSError as failed:
                shown = program.decode("utf-8", "backslashreplace")
                text = f"{shown}: {failed.strerror}"
                raise StartFailed(wire.STAGE_EXEC, failed.errno or 0, text) from None
        finally:
            os.close(cwd)
            if script >= 0:
                os.close(script)

    def _make(
        self,
        command: Command,
        program: bytes,
        argv: list[bytes],
        env: list[bytes],
        cwd: int,
        script: int,
    ) -> int:
        # The child inherits the score, so there is no moment in which it has the supervisor's.
        os.pwrite(self._score, b"%d" % max(500, int(self._own_score)), 0)
        try:
            if max(command.limits) >= 0:
                return _fork_limited(command, program, argv, env, cwd, script)
            return self._posix.spawn(
                program, argv, env, cwd, command.streams, command.terminal, script
            )
        finally:
            os.pwrite(self._score, self._own_score, 0)


def _shell_call(script: bytes) -> tuple[list[bytes], int]:
    """The shell's arguments for a script and, when it is too long for one, a descriptor of it."""
    shell = next((shell for shell in SHELLS if os.access(shell, os.X_OK)), None)
    if shell is None:
        text = "the image has neither /bin/bash nor /bin/sh; only the argv form works in it"
        raise StartFailed(wire.STAGE_SHELL, ENOENT, text)
    if len(script) <= wire.MAX_ARGUMENT:
        return [shell, b"-c", script], -1
    fd = os.memfd_create("script", os.MFD_CLOEXEC)
    left = memoryview(script)
    while left:
        left = left[os.write(fd, left) :]
    os.lseek(fd, 0, os.SEEK_SET)
    return [shell, b"/proc/self/fd/3"], fd


def find_program(name: bytes, path: bytes, cwd: bytes) -> bytes:
    """The file that `name` means. StartFailed when there is none that can be run."""
    if b"/" in name:
        return name
    problem = ENOENT
    for folder in path.split(b":"):
        candidate = os.path.join(cwd, folder, name)
        if os.access(candidate, os.X_OK):
            if not os.path.isdir(candidate):
                return candidate
            problem = EISDIR
        elif os.path.exists(candidate):
            problem = EACCES
    shown = name.decode("utf-8", "backslashreplace")
    text = f"{shown}: not found in PATH" if problem == ENOENT else f"{shown}: cannot be run"
    raise StartFailed(wire.STAGE_EXEC, problem, text)


def _fork_limited(
    command: Command, program: bytes, argv: list[bytes], env: list[bytes], cwd: int, script: int
) -> int:
    """Start with resource limits: they are the whole process's, so the child sets its own."""
    heard, tell = os.pipe2(os.O_CLOEXEC)
    try:
        pid = os.fork()
        if pid == 0:
            _become(command, program, argv, env, cwd, script, tell)
    except BaseException:
        os.close(heard)
        raise
    finally:
        os.close(tell)
    try:
        number = os.read(heard, 16)
    finally:
        os.close(heard)
    if number:
        raise OSError(int(number), os.strerror(int(number)))
    return pid


def _become(
    command: Command,
    program: bytes,
    argv: list[bytes],
    env: list[bytes],
    cwd: int,
    script: int,
    tell: int,
) -> None:
    """The forked child: never returns."""
    try:
        os.setsid()
        if command.terminal is not None:
            os.dup2(os.open(command.terminal, os.O_RDWR), 0)
            os.dup2(0, 1)
            os.dup2(0, 2)
        else:
            for target, stream in enumerate(command.streams):
                os.dup2(stream, target)
        os.fchdir(cwd)
        if script >= 0:
            os.dup2(script, 3)
        for number in IGNORED_SIGNALS:
            signal(number, SIG_DFL)
        for number, limit in zip(LIMITS, command.limits, strict=True):
            if limit >= 0:
                hard = prlimit(0, number)[1]
                limit = limit if hard < 0 else min(limit, hard)
                setrlimit(number, (limit, limit))
        os.execve(program, argv, dict(item.split(b"=", 1) for item in env))
    except OSError as failed:
        os.write(tell, b"%d" % (failed.errno or EACCES))
    finally:
        os._exit(127)
