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
    NO_LIMITS,
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
_LONGEST = timedelta(days=36_500)
_NOTHING = timedelta(0)
_LONGEST_GRACE = timedelta(milliseconds=wire.MAX_GRACE_MS)
_MILLISECOND = timedelta(milliseconds=1)
_UNLIMITED = (-1,) * 6

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
    if len(spec.cwd) > wire.MAX_PATH or not spec.cwd.startswith(b"/"):
        raise InvalidField("cwd", "must be an absolute path of at most 4,095 bytes")
    _check_strings(spec)
    if spec.timeout is not None and not _NOTHING < spec.timeout < _LONGEST:
        raise InvalidField("timeout", "must be positive and below 100 years")
    if not _NOTHING <= spec.grace <= _LONGEST_GRACE:
        raise InvalidField("grace", f"must be 0..{wire.MAX_GRACE_MS} ms")
    if spec.pty is not None:
        check_size(spec.pty)
    if spec.limits is not NO_LIMITS:
        for name, limit in zip(Limits.__slots__, _limits(spec.limits), strict=True):
            if limit != -1 and not 0 <= limit < 2**62:
                raise InvalidField(f"limits.{name}", "must be 0 or more")


def _check_strings(spec: StartSpec) -> None:
    if len(spec.argv) > wire.MAX_ARGUMENTS or len(spec.env) > wire.MAX_ARGUMENTS:
        raise InvalidField("argv", f"at most {wire.MAX_ARGUMENTS} arguments and variables")
    script = spec.script or b""
    if len(script) > wire.MAX_SCRIPT:
        raise InvalidField("script", f"is longer than {wire.MAX_SCRIPT} bytes")
    if any(not name or b"=" in name for name in spec.env):
        raise InvalidField("env", "a name is empty or holds =")
    items = (*spec.argv, *spec.env, *spec.env.values(), spec.cwd)
    joined = b"\0".join((*items, script))
    if joined.count(b"\0") != len(items):
        raise InvalidField("argv", "an argument, variable, path or script holds a NUL byte")
    if len(joined) > _MAX_TOTAL:
        raise InvalidField("argv", f"arguments, variables and script exceed {_MAX_TOTAL} bytes")
    if len(joined) > wire.MAX_ARGUMENT:
        variables = [name + b"=" + value for name, value in spec.env.items()]
        if max(map(len, (*spec.argv, *variables, b""))) > wire.MAX_ARGUMENT:
            raise InvalidField("argv", f"one is longer than {wire.MAX_ARGUMENT} bytes")


def check_size(size: PtySize) -> None:
    """InvalidField when a terminal's size is out of bounds."""
    if not (1 <= size.rows <= 65_535 and 1 <= size.columns <= 65_535):
        raise InvalidField("pty", "rows and columns must be 1..65535")


def _limits(limits: Limits) -> tuple[int, ...]:
    if limits is NO_LIMITS:
        return _UNLIMITED
    values = (getattr(limits, name) for name in Limits.__slots__)
    return tuple(-1 if value is None else value for value in values)


def milliseconds(span: timedelta) -> int:
    """Whole milliseconds, rounded up."""
    return -(-span // _MILLISECOND)


def start_frame(channel: int, spec: StartSpec, *, archive: bool = False) -> bytes:
    """START; the specification has been checked."""
    flags = (
        FLAG_ROOT * spec.root
        | FLAG_STDIN * (spec.stdin or spec.pty is not None)
        | FLAG_TERMINAL * (spec.pty is not None)
        | FLAG_SCRIPT * (spec.script is not None)
        | FLAG_ARCHIVE * archive
    )
    payload = wire.start(
        flags,
        (spec.pty.rows, spec.pty.columns) if spec.pty else (24, 80),
        -1 if spec.timeout is None else milliseconds(spec.timeout),
        milliseconds(spec.grace),
        _limits(spec.limits),
        spec.exec_id.encode(),
        spec.cwd,
        spec.argv if spec.script is None else (spec.script,),
        [name + b"=" + value for name, value in spec.env.items()] if spec.env else (),
    )
    return wire.controls(wire.START, channel, payload)


def outcome(payload: bytes) -> Outcome:
    """An outcome from ENDED."""
    if not wire.ENDED_HEAD.size <= len(payload) <= wire.ENDED_HEAD.size + 4096:
        raise wire.ProtocolError("a malformed ending")
    number, code, signal, stage, errno, out, err, held, duration, cpu, memory = (
        wire.ENDED_HEAD.unpack_from(payload)
    )
    ending = _ENDINGS.get(number)
    if ending is None or code > 255 or signal > 64 or max(duration, cpu) > 10**16:
        raise wire.ProtocolError("an unknown ending")
    if (ending is Ending.EXITED and code < 0) or (ending is Ending.SIGNALLED and signal < 1):
        raise wire.ProtocolError("an ending without its status")
    return Outcome(
        ending,
        code=None if code < 0 else code,
        signal=None if signal < 0 else signal,
        stage=_STAGES.get(stage) if ending is Ending.START_FAILED else None,
        errno=errno,
        message=payload[wire.ENDED_HEAD.size :].decode("utf-8", "replace"),
        stdout_bytes=out,
        stderr_bytes=err,
        pipe_held=bool(held),
        duration=timedelta(microseconds=duration),
        cpu=timedelta(microseconds=cpu),
        max_rss_bytes=memory,
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
