"""Turns the runtime's values into frames for the supervisor, and its frames into values.

What comes from the supervisor is checked: a root command may have tampered with it.
"""

import re
from datetime import timedelta

from container_runtime.agent import wire
from container_runtime.agent.requests import (
    FLAG_ARCHIVE,
    FLAG_ROOT,
    FLAG_SCRIPT,
    FLAG_STDIN,
    FLAG_TERMINAL,
)
from container_runtime.link.errors import (
    DiskFull,
    FileDenied,
    FileError,
    FileExists,
    FileMissing,
)
from container_runtime.model import (
    Ending,
    ExecutionState,
    FileInfo,
    FileKind,
    FilePage,
    Limits,
    Outcome,
    PtySize,
    StartSpec,
    StartStage,
)
from workroom.errors import InvalidField

_ID = re.compile(r"[A-Za-z0-9.:-][A-Za-z0-9_.:-]{0,127}")
_MAX_TOTAL = 1_000_000

_ENDINGS = {
    wire.EXITED: Ending.EXITED,
    wire.SIGNALLED: Ending.SIGNALLED,
    wire.TIMED_OUT: Ending.TIMED_OUT,
    wire.CANCELLED: Ending.CANCELLED,
    wire.OUT_OF_MEMORY: Ending.OUT_OF_MEMORY,
    wire.START_FAILED: Ending.START_FAILED,
}
_STAGES = {
    wire.STAGE_SPEC: StartStage.SPEC,
    wire.STAGE_PIPES: StartStage.PIPES,
    wire.STAGE_PTY: StartStage.PTY,
    wire.STAGE_SHELL: StartStage.SHELL,
    wire.STAGE_CWD: StartStage.CWD,
    wire.STAGE_EXEC: StartStage.EXEC,
}
STATES = {
    wire.STARTING: ExecutionState.STARTING,
    wire.RUNNING: ExecutionState.RUNNING,
    wire.OVER: ExecutionState.ENDED,
}
_KINDS = {
    wire.KIND_FILE: FileKind.FILE,
    wire.KIND_DIRECTORY: FileKind.DIRECTORY,
    wire.KIND_SYMLINK: FileKind.SYMLINK,
    wire.KIND_OTHER: FileKind.OTHER,
}
_FILE_ERRORS: dict[int, type[FileError]] = {
    1: FileDenied,
    2: FileMissing,
    13: FileDenied,
    17: FileExists,
    20: FileMissing,
    28: DiskFull,
    30: FileDenied,
    122: DiskFull,
}


def check(spec: StartSpec) -> None:
    """InvalidField when a specification is out of its bounds."""
    if not _ID.fullmatch(spec.exec_id):
        raise InvalidField("exec_id", "must be 1..128 of A-Za-z0-9_.:- and not begin with _")
    if bool(spec.argv) == (spec.script is not None):
        raise InvalidField("argv", "exactly one of argv and script must be given")
    if spec.argv and not spec.argv[0]:
        raise InvalidField("argv", "the program's name is empty")
    _check_strings(spec)
    if spec.timeout is not None and spec.timeout <= timedelta(0):
        raise InvalidField("timeout", "must be positive")
    if not timedelta(0) <= spec.grace <= timedelta(milliseconds=wire.MAX_GRACE_MS):
        raise InvalidField("grace", f"must be 0..{wire.MAX_GRACE_MS} ms")
    if spec.pty is not None:
        check_size(spec.pty)
    for name, limit in zip(Limits.__slots__, _limits(spec.limits), strict=True):
        if limit != -1 and not 0 <= limit < 2**62:
            raise InvalidField(f"limits.{name}", "must be 0 or more")


def _check_strings(spec: StartSpec) -> None:
    if len(spec.argv) > wire.MAX_ARGUMENTS or len(spec.env) > wire.MAX_ARGUMENTS:
        raise InvalidField("argv", f"at most {wire.MAX_ARGUMENTS} arguments and variables")
    variables = [name + b"=" + value for name, value in spec.env.items()]
    for field, items in (("argv", list(spec.argv)), ("env", variables), ("cwd", [spec.cwd])):
        if any(b"\0" in item for item in items):
            raise InvalidField(field, "holds a NUL byte")
        if any(len(item) > wire.MAX_ARGUMENT for item in items):
            raise InvalidField(field, f"one is longer than {wire.MAX_ARGUMENT} bytes")
    if any(not name or b"=" in name for name in spec.env):
        raise InvalidField("env", "a name is empty or holds =")
    if len(spec.cwd) > wire.MAX_PATH or not spec.cwd.startswith(b"/"):
        raise InvalidField("cwd", "must be an absolute path of at most 4,095 bytes")
    script = spec.script or b""
    if len(script) > wire.MAX_SCRIPT or b"\0" in script:
        raise InvalidField("script", f"at most {wire.MAX_SCRIPT} bytes, none of them NUL")
    total = sum(len(item) + 5 for item in [*spec.argv, *variables, script])
    if total > _MAX_TOTAL:
        raise InvalidField("argv", f"arguments, variables and script exceed {_MAX_TOTAL} bytes")


def check_size(size: PtySize) -> None:
    """InvalidField when a terminal's size is out of bounds."""
    if not (1 <= size.rows <= 65_535 and 1 <= size.columns <= 65_535):
        raise InvalidField("pty", "rows and columns must be 1..65535")


def _limits(limits: Limits) -> list[int]:
    values = (getattr(limits, name) for name in Limits.__slots__)
    return [-1 if value is None else value for value in values]


def milliseconds(span: timedelta) -> int:
    """Whole milliseconds, rounded up."""
    return -(-span // timedelta(milliseconds=1)) if span else 0


def start_frame(channel: int, spec: StartSpec, *, archive: bool = False) -> bytes:
    """START; the specification has been checked."""
    flags = (
        FLAG_ROOT * spec.root
        | FLAG_STDIN * (spec.stdin or spec.pty is not None)
        | FLAG_TERMINAL * (spec.pty is not None)
        | FLAG_SCRIPT * (spec.script is not None)
        | FLAG_ARCHIVE * archive
    )
    size = spec.pty or PtySize()
    return wire.control(
        wire.START,
        channel,
        spec.exec_id.encode(),
        flags,
        [spec.script] if spec.script is not None else list(spec.argv),
        [part for pair in spec.env.items() for part in pair],
        spec.cwd,
        size.rows,
        size.columns,
        -1 if spec.timeout is None else -(-spec.timeout // timedelta(milliseconds=1)),
        -(-spec.grace // timedelta(milliseconds=1)),
        _limits(spec.limits),
    )


def outcome(payload: bytes) -> Outcome:
    """An outcome from ENDED."""
    values = wire.fields(payload, 12)
    ending = _ENDINGS.get(wire.number(values[0]))
    code, signal = wire.number(values[1], -1, 255), wire.number(values[2], -1, 64)
    if ending is None:
        raise wire.ProtocolError("an unknown ending")
    if (ending is Ending.EXITED and code < 0) or (ending is Ending.SIGNALLED and signal < 1):
        raise wire.ProtocolError("an ending without its status")
    return Outcome(
        ending,
        code=None if code < 0 else code,
        signal=None if signal < 0 else signal,
        stage=_STAGES.get(wire.number(values[3])) if ending is Ending.START_FAILED else None,
        errno=wire.number(values[4], 0, 4095),
        message=wire.text(values[5], 4096).decode("utf-8", "replace"),
        stdout_bytes=wire.number(values[6]),
        stderr_bytes=wire.number(values[7]),
        pipe_held=bool(wire.number(values[8], 0, 1)),
        duration=timedelta(microseconds=wire.number(values[9], 0, 10**15)),
        cpu=timedelta(microseconds=wire.number(values[10], 0, 10**15)),
        max_rss_bytes=wire.number(values[11]),
    )


def file_info(values: wire.Value) -> FileInfo:
    """A file's description."""
    if not isinstance(values, list) or len(values) != 8:
        raise wire.ProtocolError("malformed file description")
    kind = _KINDS.get(wire.number(values[1]))
    if kind is None:
        raise wire.ProtocolError("an unknown kind of file")
    return FileInfo(
        path=wire.text(values[0], 65_536),
        kind=kind,
        size=wire.number(values[2]),
        mode=wire.number(values[3], 0, 0o7777),
        uid=wire.number(values[4], 0, 2**32),
        gid=wire.number(values[5], 0, 2**32),
        modified_ns=wire.number(values[6], -(2**63), 2**63),
        target=wire.text(values[7], 65_536) if kind is FileKind.SYMLINK else None,
    )


def file_page(answer: list[wire.Value]) -> FilePage:
    """A page of a listing."""
    if len(answer) != 3 or not isinstance(answer[2], list):
        raise wire.ProtocolError("malformed listing")
    more = wire.number(answer[0], 0, 1)
    entries = tuple(file_info(entry) for entry in answer[2])
    return FilePage(entries, wire.text(answer[1], 4096) if more else None)


def file_error(payload: bytes, path: bytes) -> FileError:
    """The error of FILE_ERROR."""
    number, message = wire.fields(payload, 2)
    return file_error_of(
        wire.number(number, 0, 4095), wire.text(message, 4096).decode("utf-8", "replace"), path
    )


def file_error_of(number: int, message: str, path: bytes) -> FileError:
    """The error class for an errno."""
    return _FILE_ERRORS.get(number, FileError)(number, message, path)
