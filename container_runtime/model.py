"""The runtime's plain values: what is to be run, how it ended, what a file is.

Knows no transport, no engine and no storage. Names, arguments and environment are bytes, as the
kernel has them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import IntEnum, StrEnum
from types import MappingProxyType
from typing import Protocol, runtime_checkable

DEFAULT_UID = 1000
"""The unprivileged user that commands and file verbs act as, in every image."""

DEFAULT_CWD = b"/workspace"


class Stream(IntEnum):
    """An execution's output stream. A PTY has only `STDOUT`."""

    STDOUT = 1
    STDERR = 2


@dataclass(frozen=True, slots=True)
class PtySize:
    """A terminal's size in characters; each 1..65535."""

    rows: int = 24
    columns: int = 80


@dataclass(frozen=True, slots=True)
class Limits:
    """Resource limits of one execution, inherited by what it starts; `None` leaves one alone."""

    open_files: int | None = None
    processes: int | None = None
    """Counts every process of the user, not only this execution's (the kernel's RLIMIT_NPROC)."""
    file_bytes: int | None = None
    address_space_bytes: int | None = None
    cpu_seconds: int | None = None
    core_bytes: int | None = None


NO_LIMITS = Limits()


@dataclass(frozen=True, slots=True)
class StartSpec:
    """What to run. Exactly one of `argv` and `script` is given.

    `argv[0]` without a slash is looked up in the PATH of `env`. A `script` runs under `/bin/bash`
    or, where there is none, `/bin/sh`; an image without either gives `start_failed`.

    Limits: 4,096 arguments, 4,096 variables, 1 MiB in all; one argument or variable at most
    131,071 bytes (the kernel's bound); a script up to 900,000 bytes. None holds a NUL byte.
    """

    exec_id: str
    """Client-chosen, 1..128 of `A-Za-z0-9_.:-`, not beginning with `_`; unique within the
    container."""
    argv: tuple[bytes, ...] = ()
    script: bytes | None = None
    env: Mapping[bytes, bytes] = field(default_factory=lambda: MappingProxyType({}))
    """Added to (and overriding) PATH, HOME, USER, LOGNAME, SHELL and the container's own."""
    cwd: bytes = DEFAULT_CWD
    root: bool = False
    """Run as uid 0 instead of `DEFAULT_UID`. The caller has checked that it is allowed."""
    stdin: bool = False
    """Keep stdin open for `Link.stdin`; otherwise it is `/dev/null`. A PTY always has it."""
    pty: PtySize | None = None
    timeout: timedelta | None = None
    """Counted by the supervisor from the start, also while the host is away. `None`: no bound."""
    grace: timedelta = timedelta(seconds=2)
    """Time between TERM and KILL on timeout and cancel; at most 60 s."""
    limits: Limits = NO_LIMITS


class Ending(StrEnum):
    """Why an execution is over."""

    EXITED = "exited"
    SIGNALLED = "signalled"
    TIMED_OUT = "timed_out"
    CANCELLED = "cancelled"
    OUT_OF_MEMORY = "out_of_memory"
    START_FAILED = "start_failed"
    LOST = "lost"
    """The container or its supervisor is gone; nothing more is known."""


class LostReason(StrEnum):
    """Why a container was lost while a command ran in it."""

    DIED = "died"
    """Its main process ended, or somebody outside ended it."""
    DELETED = "deleted"
    SUSPENDED = "suspended"
    INTERRUPTED = "interrupted"
    """The engine, or the machine, went down with it; it can be resumed."""
    DISK_FULL = "disk_full"
    """It was stopped, because it had written more than its size allows."""


class StartStage(StrEnum):
    """The step of starting that failed."""

    SPEC = "spec"
    """The supervisor refused the request: unknown limit, too many executions, a duplicate."""
    PIPES = "pipes"
    PTY = "pty"
    SHELL = "shell"
    """A script was asked for and the image has neither `/bin/bash` nor `/bin/sh`."""
    CWD = "cwd"
    EXEC = "exec"
    """The program does not exist, is not executable, or no process could be made (EAGAIN)."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an execution ended. Byte counts are those read at the source, and cover everything."""

    ending: Ending
    code: int | None = None
    """Set for `EXITED`: 0..255. Also set for other endings when the leader still exited itself."""
    signal: int | None = None
    """The signal that ended the leader: always for `SIGNALLED`, else when there was one."""
    stage: StartStage | None = None
    """Set for `START_FAILED`, with `errno` (0 when no system call failed) and `message`."""
    errno: int = 0
    message: str = ""
    lost: LostReason | None = None
    """Set for `LOST` by whoever knows why."""
    stdout_bytes: int = 0
    stderr_bytes: int = 0
    pipe_held: bool = False
    """A background process still held an output pipe when the outcome was reported. It is left
    alive; what it writes later is discarded."""
    duration: timedelta = timedelta()
    cpu: timedelta = timedelta()
    """User and system time of the leader and the children it waited for."""
    max_rss_bytes: int = 0
    """Of the leader; never below the supervisor's own, which the kernel counts until exec."""


class ExecutionState(StrEnum):
    STARTING = "starting"
    RUNNING = "running"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class Offsets:
    """How many bytes of each stream are safely in the spool, counted from the beginning."""

    stdout: int = 0
    stderr: int = 0


@dataclass(frozen=True, slots=True)
class ExecutionStatus:
    """What the link knows of one execution that is not yet recorded as ended."""

    exec_id: str
    state: ExecutionState
    received: Offsets
    """Bytes handed to the sink and taken by it."""
    stdin_offset: int
    """Bytes of stdin that the supervisor has; the next `stdin` call may begin here or below."""
    stdin_ended: bool
    """Stdin was ended, or the command closed its side: further `stdin` calls are refused."""
    outcome: Outcome | None = None


class Sink(Protocol):
    """Where executions' bytes and endings go: the spool and the registry of executions.

    For one execution calls come one at a time and in order; different executions' calls overlap,
    so a slow one holds up nobody else. Offsets are contiguous: each call begins where the one
    before it (or `resume`) ended. A call that raises is logged; the execution is then cancelled
    and the rest of its output discarded, but `ended` still comes.
    """

    async def output(self, exec_id: str, stream: Stream, offset: int, data: bytes) -> None:
        """Take 1..262,144 bytes. They are acknowledged, and forgotten by the supervisor, when this
        returns, so they must be in the spool by then. Waiting here stops the command (`block`)."""

    async def ended(self, exec_id: str, outcome: Outcome) -> None:
        """Record the outcome. Comes once per execution and after all of its output, unless this
        process dies in between; then it comes again. The supervisor forgets the execution when
        this returns."""

    async def resume(self, exec_id: str) -> Offsets | None:
        """Say how much of an execution is already in the spool, after the supervisor came back or
        this process restarted. `None`: unknown here; the link cancels and forgets it."""


@runtime_checkable
class PromptSink(Sink, Protocol):
    """A sink that mostly needs no waiting. What returns False, or raises, has done nothing that
    the waiting form, which is called then, would not do again."""

    def output_now(self, exec_id: str, stream: Stream, offset: int, data: bytes) -> bool:
        """As `output`, if it can be done at once."""

    def ended_now(self, exec_id: str, outcome: Outcome) -> bool:
        """As `ended`, if it can be done at once."""


class FileKind(StrEnum):
    FILE = "file"
    DIRECTORY = "directory"
    SYMLINK = "symlink"
    OTHER = "other"
    """A device, FIFO or socket: listed, never read or written."""


@dataclass(frozen=True, slots=True)
class FileInfo:
    """One entry of the container's file system. `path` is absolute, or in a listing the name;
    names are any bytes."""

    path: bytes
    kind: FileKind
    size: int
    mode: int
    """Permission bits only (0o7777)."""
    uid: int
    gid: int
    modified_ns: int
    target: bytes | None = None
    """Where a symlink points, unresolved."""


@dataclass(frozen=True, slots=True)
class FilePage:
    """A part of a listing, sorted by name. `next_name` is the cursor (the last name that was
    looked at), `None` at the end."""

    entries: tuple[FileInfo, ...]
    next_name: bytes | None = None
