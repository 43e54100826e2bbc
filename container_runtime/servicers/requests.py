"""Owns how request messages become domain values, and which of their fields are allowed."""

import re
import secrets
from collections.abc import Iterable
from datetime import timedelta

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message

from container_runtime import limits
from container_runtime.model import PtySize, StartSpec, Stream
from container_runtime.records import (
    DEFAULT_IDLE_TIMEOUT,
    DEFAULT_IMAGE,
    DEFAULT_PROJECT,
    DEFAULT_RETENTION,
    DEFAULT_SPOOL_BYTES,
    ContainerRequest,
    ExecutionRequest,
    Size,
    SpoolPolicy,
    SpoolSpec,
)
from workroom.errors import InvalidField
from workroom.runtime.v1 import containers_pb2 as containers
from workroom.runtime.v1 import executions_pb2 as executions
from workroom.runtime.v1 import filesystem_pb2 as files

SIZES = {
    containers.Container.SIZE_UNSPECIFIED: Size.MEDIUM,
    containers.Container.SIZE_SMALL: Size.SMALL,
    containers.Container.SIZE_MEDIUM: Size.MEDIUM,
    containers.Container.SIZE_LARGE: Size.LARGE,
}
_POLICIES = {
    executions.Spool.POLICY_UNSPECIFIED: SpoolPolicy.KEEP_ENDS,
    executions.Spool.POLICY_KEEP_ENDS: SpoolPolicy.KEEP_ENDS,
    executions.Spool.POLICY_BLOCK: SpoolPolicy.BLOCK,
}
_STREAMS = {
    executions.OUTPUT_STREAM_STDOUT: Stream.STDOUT,
    executions.OUTPUT_STREAM_STDERR: Stream.STDERR,
}
_USERS = (
    executions.Command.USER_UNSPECIFIED,
    executions.Command.USER_DEFAULT,
    executions.Command.USER_ROOT,
)
_EXECUTION_ID = re.compile(r"[A-Za-z0-9_.-]{1,128}")
_LABEL_KEY = re.compile(r"[a-z0-9._-]{1,63}")
_IMAGE = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._/:@-]{0,254}")
_PROJECT = re.compile(r"[A-Za-z0-9_.-]{1,128}")
_DEFAULT_GRACE = timedelta(seconds=2)


def container_request(message: containers.CreateContainerRequest) -> ContainerRequest:
    """What a caller wants of a container. Raises `InvalidField`."""
    if len(message.request_id) > limits.REQUEST_ID_CHARACTERS:
        raise InvalidField(
            "request_id", f"at most {limits.REQUEST_ID_CHARACTERS} characters are allowed"
        )
    if message.size not in SIZES:
        raise InvalidField("size", f"there is no size {message.size}")
    image = message.image or DEFAULT_IMAGE
    if not _IMAGE.fullmatch(image):
        raise InvalidField("image", "it is not the name of an image")
    project = message.project_id or DEFAULT_PROJECT
    if not _PROJECT.fullmatch(project):
        raise InvalidField("project_id", "1 to 128 characters of [A-Za-z0-9_.-] are allowed")
    return ContainerRequest(
        request_id=message.request_id,
        project_id=project,
        image=image,
        size=SIZES[message.size],
        labels=_labels(message),
        environment=_environment("environment", message.environment),
        idle_timeout=_between(
            "idle_timeout",
            duration(message, "idle_timeout"),
            limits.IDLE_TIMEOUT_MIN,
            limits.IDLE_TIMEOUT_MAX,
        )
        or DEFAULT_IDLE_TIMEOUT,
        retention=_retention(message),
        max_life=_between(
            "max_life", duration(message, "max_life"), limits.MAX_LIFE_MIN, limits.MAX_LIFE_MAX
        ),
    )


def _retention(message: containers.CreateContainerRequest) -> timedelta:
    asked = duration(message, "retention")
    retention = _between("retention", asked, timedelta(0), limits.RETENTION_MAX)
    return DEFAULT_RETENTION if retention is None else retention


def _labels(message: containers.CreateContainerRequest) -> dict[str, str]:
    labels = dict(message.labels)
    if len(labels) > limits.LABELS:
        raise InvalidField("labels", f"{len(labels)} were given, at most {limits.LABELS} may be")
    for key, value in labels.items():
        if not _LABEL_KEY.fullmatch(key):
            raise InvalidField("labels", f"key {key!r} is not 1 to 63 characters of [a-z0-9._-]")
        if len(value) > limits.LABEL_VALUE_CHARACTERS:
            most = limits.LABEL_VALUE_CHARACTERS
            raise InvalidField("labels", f"the value of {key} has more than {most} characters")
    return labels


def execution_request(
    message: executions.StartExecutionRequest, *, field: str = "", stdin: bool = False
) -> ExecutionRequest:
    """A command to start; `field` is the path of the message in its request. With `stdin`,
    standard input is open in any case. Raises `InvalidField`."""
    execution_id = message.execution_id or f"exec_{secrets.token_hex(12)}"
    if not _EXECUTION_ID.fullmatch(execution_id):
        raise InvalidField(
            f"{field}execution_id", "1 to 128 characters of [A-Za-z0-9_.-] are allowed"
        )
    if not message.container_id:
        raise InvalidField(f"{field}container_id", "it is required")
    command, inside = message.command, f"{field}command."
    argv, script = _program(command, inside)
    if command.user not in _USERS:
        raise InvalidField(f"{inside}user", f"there is no user {command.user}")
    grace = _between(
        f"{field}kill_grace",
        duration(message, "kill_grace"),
        timedelta(0),
        limits.KILL_GRACE_MAX,
    )
    spec = StartSpec(
        exec_id=execution_id,
        argv=argv,
        script=script,
        env=_environment(f"{inside}environment", command.environment),
        cwd=_cwd(command.cwd, f"{inside}cwd"),
        root=command.user == executions.Command.USER_ROOT,
        stdin=command.open_stdin or stdin,
        pty=terminal(command.terminal, inside) if command.HasField("terminal") else None,
        timeout=_between(
            f"{field}timeout",
            duration(message, "timeout"),
            timedelta(milliseconds=1),
            limits.TIMEOUT_MAX,
        ),
        grace=_DEFAULT_GRACE if grace is None else grace,
    )
    return ExecutionRequest(message.container_id, spec, _spool(message.spool, f"{field}spool."))


def _program(command: executions.Command, inside: str) -> tuple[tuple[bytes, ...], bytes | None]:
    match command.WhichOneof("program"):
        case "argv":
            return _argv(command.argv.args, f"{inside}argv.args"), None
        case "script":
            script = command.script.encode()
            if not script or b"\0" in script or len(script) > limits.SCRIPT_BYTES:
                raise InvalidField(
                    f"{inside}script", f"1 to {limits.SCRIPT_BYTES} bytes without NUL are allowed"
                )
            return (), script
        case _:
            raise InvalidField(f"{inside}program", "one of argv and script is required")


def _argv(args: Iterable[str], field: str) -> tuple[bytes, ...]:
    argv = tuple(argument.encode() for argument in args)
    if not 1 <= len(argv) <= limits.ARGUMENTS:
        raise InvalidField(field, f"1 to {limits.ARGUMENTS} arguments are allowed")
    if not argv[0]:
        raise InvalidField(field, "the program's name is empty")
    if sum(map(len, argv)) > limits.ARGV_BYTES:
        raise InvalidField(field, f"at most {limits.ARGV_BYTES} bytes are allowed together")
    for number, argument in enumerate(argv):
        if len(argument) > limits.ARGUMENT_BYTES or b"\0" in argument:
            raise InvalidField(
                f"{field}[{number}]",
                f"at most {limits.ARGUMENT_BYTES} bytes without NUL are allowed",
            )
    return argv


def _cwd(cwd: str, field: str) -> bytes:
    if not cwd:
        return b"/workspace"
    if not cwd.startswith("/") or "\0" in cwd or len(cwd.encode()) > limits.PATH_BYTES:
        raise InvalidField(field, "an absolute path of up to 4,095 bytes without NUL is needed")
    return cwd.encode()


def _environment(
    field: str, variables: Iterable[containers.EnvironmentVariable]
) -> dict[bytes, bytes]:
    found: dict[bytes, bytes] = {}
    for variable in variables:
        if not variable.name or "=" in variable.name or "\0" in variable.name:
            raise InvalidField(field, "a name must not be empty nor hold '=' or NUL")
        if "\0" in variable.value:
            raise InvalidField(field, f"the value of {variable.name} holds NUL")
        found[variable.name.encode()] = variable.value.encode()
    if len(found) > limits.VARIABLES:
        raise InvalidField(field, f"at most {limits.VARIABLES} variables are allowed")
    if sum(len(name) + len(value) + 2 for name, value in found.items()) > limits.ENVIRONMENT_BYTES:
        raise InvalidField(field, f"at most {limits.ENVIRONMENT_BYTES} bytes are allowed together")
    return found


def terminal(message: executions.Terminal, field: str = "") -> PtySize:
    """A terminal's size. Raises `InvalidField`."""
    for name, value in (("rows", message.rows), ("columns", message.columns)):
        if not 0 <= value <= limits.TERMINAL_CHARACTERS:
            raise InvalidField(
                f"{field}terminal.{name}",
                f"{value} is not from 1 to {limits.TERMINAL_CHARACTERS}",
            )
    return PtySize(message.rows or 24, message.columns or 80)


def _spool(message: executions.Spool, field: str) -> SpoolSpec:
    size = message.bytes_per_stream or DEFAULT_SPOOL_BYTES
    if not limits.SPOOL_BYTES_MIN <= size <= limits.SPOOL_BYTES_MAX:
        raise InvalidField(
            f"{field}bytes_per_stream",
            f"{size} is not from {limits.SPOOL_BYTES_MIN} to {limits.SPOOL_BYTES_MAX}",
        )
    if message.policy not in _POLICIES:
        raise InvalidField(f"{field}policy", f"there is no policy {message.policy}")
    return SpoolSpec(size, _POLICIES[message.policy])


def output_stream(value: "executions.OutputStream.ValueType") -> Stream:
    """Which stream. Raises `InvalidField`."""
    if value not in _STREAMS:
        raise InvalidField("stream", "standard output or standard error is needed")
    return _STREAMS[value]


def offset(field: str, value: int) -> int:
    """A position. Raises `InvalidField`."""
    if value < 0:
        raise InvalidField(field, f"{value} is negative")
    return value


def signal_number(value: int) -> int:
    """A signal of Linux. Raises `InvalidField`."""
    if not 1 <= value <= limits.SIGNALS:
        raise InvalidField("signal", f"{value} is not from 1 to {limits.SIGNALS}")
    return value


def stdin_data(field: str, data: bytes) -> bytes:
    """A piece of standard input. Raises `InvalidField`."""
    if len(data) > limits.STDIN_BYTES:
        raise InvalidField(field, f"at most {limits.STDIN_BYTES} bytes are allowed")
    return data


def at_most(field: str, value: int, default: int, most: int) -> int:
    """A number from 0 to `most`, of which 0 means `default`. Raises `InvalidField`."""
    if not 0 <= value <= most:
        raise InvalidField(field, f"{value} is not from 0 to {most}")
    return value or default


def duration(message: Message, field: str) -> timedelta | None:
    """A span of time, `None` when it is not set."""
    if not message.HasField(field):
        return None
    found: Duration = getattr(message, field)
    # Compared by their own units: ToTimedelta loses nanoseconds and raises past 10,000 years.
    return timedelta(seconds=found.seconds, microseconds=found.nanos / 1000)


def wait_span(message: Message, field: str) -> timedelta | None:
    """How long to wait, `None` for as long as it takes. Raises `InvalidField`."""
    return _between(field, duration(message, field), timedelta(0), limits.TIMEOUT_MAX)


def _between(
    field: str, value: timedelta | None, least: timedelta, most: timedelta
) -> timedelta | None:
    if value is not None and not least <= value <= most:
        raise InvalidField(
            field,
            f"{value.total_seconds():g} s is not from {least.total_seconds():g} s "
            f"to {most.total_seconds():g} s",
        )
    return value


def path(field: str, message: files.FilePath) -> bytes:
    """A name inside a container. Raises `InvalidField`."""
    name = message.raw if message.WhichOneof("kind") == "raw" else message.text.encode()
    if not name.startswith(b"/") or b"\0" in name or len(name) > limits.PATH_BYTES:
        raise InvalidField(field, "an absolute path of up to 4,095 bytes without NUL is needed")
    return name


def mode(field: str, value: int) -> int:
    """Permission bits. Raises `InvalidField`."""
    if not 0 <= value <= 0o7777:
        raise InvalidField(field, f"{value:o} is not from 0 to 7777 (octal)")
    return value
