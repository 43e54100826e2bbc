"""Owns how domain values become response messages."""

from datetime import UTC, datetime

from google.protobuf.timestamp_pb2 import Timestamp

from container_runtime.execution import Chunk, MissingRange
from container_runtime.limits import SizeLimits, Sizes
from container_runtime.model import (
    Ending,
    FileInfo,
    FileKind,
    LostReason,
    Outcome,
    StartStage,
    Stream,
)
from container_runtime.records import (
    ContainerRecord,
    ContainerState,
    ExecutionRecord,
    ExecutionRequest,
    Size,
    Totals,
)
from workroom.errors import WorkroomError
from workroom.runtime.v1 import containers_pb2 as containers
from workroom.runtime.v1 import executions_pb2 as executions
from workroom.runtime.v1 import filesystem_pb2 as files

SIZE_VALUES = {
    Size.SMALL: containers.Container.SIZE_SMALL,
    Size.MEDIUM: containers.Container.SIZE_MEDIUM,
    Size.LARGE: containers.Container.SIZE_LARGE,
}
_CONTAINER_STATES = {
    ContainerState.CREATING: containers.Container.STATE_CREATING,
    ContainerState.ACTIVE: containers.Container.STATE_ACTIVE,
    ContainerState.SUSPENDING: containers.Container.STATE_SUSPENDING,
    ContainerState.SUSPENDED: containers.Container.STATE_SUSPENDED,
    ContainerState.RESUMING: containers.Container.STATE_RESUMING,
    ContainerState.DELETING: containers.Container.STATE_DELETING,
    ContainerState.FAILED: containers.Container.STATE_FAILED,
}
_STREAMS = {
    Stream.STDOUT: executions.OUTPUT_STREAM_STDOUT,
    Stream.STDERR: executions.OUTPUT_STREAM_STDERR,
}
_STAGES = {
    StartStage.SPEC: executions.StartFailed.STAGE_EXECUTE,
    StartStage.PIPES: executions.StartFailed.STAGE_STREAMS,
    StartStage.PTY: executions.StartFailed.STAGE_STREAMS,
    StartStage.SHELL: executions.StartFailed.STAGE_SHELL,
    StartStage.CWD: executions.StartFailed.STAGE_WORKING_DIRECTORY,
    StartStage.EXEC: executions.StartFailed.STAGE_EXECUTE,
}
_KINDS = {
    FileKind.FILE: files.FileInfo.KIND_REGULAR,
    FileKind.DIRECTORY: files.FileInfo.KIND_DIRECTORY,
    FileKind.SYMLINK: files.FileInfo.KIND_SYMBOLIC_LINK,
    FileKind.OTHER: files.FileInfo.KIND_OTHER,
}
_LOSSES = {
    LostReason.DIED: executions.ContainerLost.REASON_DIED,
    LostReason.DELETED: executions.ContainerLost.REASON_DELETED,
    LostReason.SUSPENDED: executions.ContainerLost.REASON_SUSPENDED,
    LostReason.INTERRUPTED: executions.ContainerLost.REASON_INTERRUPTED,
    LostReason.DISK_FULL: executions.ContainerLost.REASON_DISK_FULL,
}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NO_PROCESS = (11, 12)  # EAGAIN, ENOMEM: no process could be made


def container_message(record: ContainerRecord) -> containers.Container:
    """A container."""
    return containers.Container(
        id=record.id,
        project_id=record.request.project_id,
        node_id=record.node_id,
        image=record.request.image,
        size=SIZE_VALUES[record.request.size],
        state=_CONTAINER_STATES[record.state],
        labels=dict(record.request.labels),
        create_time=timestamp(record.created),
        last_active_time=timestamp(record.last_active),
        expire_time=timestamp(record.expires),
        failure=record.failure,
        suspend_time=None if record.suspended is None else timestamp(record.suspended),
        delete_time=None if record.deletes is None else timestamp(record.deletes),
        main_process=_main_process(record),
    )


def _main_process(record: ContainerRecord) -> containers.MainProcess | None:
    found = record.main_process
    if found is None or record.state is not ContainerState.ACTIVE:
        return None
    return containers.MainProcess(pid=found.pid, start_ticks=found.start_ticks)


def size_limits_messages(sizes: Sizes) -> list[containers.SizeLimits]:
    """What each size means."""
    return [_size_limits(size, found) for size, found in sizes.items()]


def _size_limits(size: Size, found: SizeLimits) -> containers.SizeLimits:
    return containers.SizeLimits(
        size=SIZE_VALUES[size],
        cpu_millis=found.cpu_millis,
        memory_bytes=found.memory_bytes,
        pids=found.pids,
        disk_bytes=found.disk_bytes,
        layer_bytes=found.layer_bytes,
    )


def execution_message(record: ExecutionRecord) -> executions.Execution:
    """An execution."""
    request = record.request
    message = executions.Execution(
        id=record.id,
        container_id=request.container_id,
        command=_command(request),
        state=executions.Execution.STATE_RUNNING,
        stdout=_totals(record.stdout),
        stderr=_totals(record.stderr),
        create_time=timestamp(record.created),
        stdin_bytes=record.stdin_bytes,
    )
    if request.spec.timeout is not None:
        message.timeout.FromTimedelta(request.spec.timeout)
    if record.started is not None:
        message.start_time.CopyFrom(timestamp(record.started))
    if record.outcome is not None and record.ended is not None:
        message.state = executions.Execution.STATE_ENDED
        message.outcome.CopyFrom(outcome_message(record.outcome))
        message.end_time.CopyFrom(timestamp(record.ended))
    return message


def _command(request: ExecutionRequest) -> executions.Command:
    spec = request.spec
    message = executions.Command(
        cwd=spec.cwd.decode("utf-8", "replace"),
        environment=[
            containers.EnvironmentVariable(
                name=name.decode("utf-8", "replace"), value=value.decode("utf-8", "replace")
            )
            for name, value in spec.env.items()
        ],
        user=executions.Command.USER_ROOT if spec.root else executions.Command.USER_DEFAULT,
        open_stdin=spec.stdin,
    )
    if spec.script is None:
        message.argv.args.extend(each.decode("utf-8", "replace") for each in spec.argv)
    else:
        message.script = spec.script.decode("utf-8", "replace")
    if spec.pty is not None:
        message.terminal.rows, message.terminal.columns = spec.pty.rows, spec.pty.columns
    return message


def _totals(totals: Totals) -> executions.OutputTotals:
    return executions.OutputTotals(
        total_bytes=totals.total, gap_bytes=totals.gap_bytes, gap_offset=totals.gap_offset
    )


def outcome_message(outcome: Outcome) -> executions.Outcome:
    """How an execution ended."""
    message = executions.Outcome(output_held=outcome.pipe_held)
    match outcome.ending:
        case Ending.EXITED:
            message.exited.code = outcome.code or 0
        case Ending.SIGNALLED:
            message.signalled.signal = outcome.signal or 0
        case Ending.TIMED_OUT:
            message.timed_out.SetInParent()
        case Ending.CANCELLED:
            message.cancelled.SetInParent()
        case Ending.OUT_OF_MEMORY:
            message.out_of_memory.SetInParent()
        case Ending.START_FAILED:
            message.start_failed.CopyFrom(_start_failed(outcome))
        case Ending.LOST:
            message.container_lost.message = outcome.message or "the container is gone"
            message.container_lost.reason = _LOSSES[outcome.lost or LostReason.DIED]
    if outcome.ending is Ending.EXITED:
        message.exited.SetInParent()
    return message


def _start_failed(outcome: Outcome) -> executions.StartFailed:
    stage = _STAGES[outcome.stage or StartStage.SPEC]
    if outcome.stage is StartStage.EXEC and outcome.errno in _NO_PROCESS:
        stage = executions.StartFailed.STAGE_FORK
    return executions.StartFailed(stage=stage, errno=outcome.errno, message=outcome.message)


def fill_chunk(message: executions.OutputChunk, chunk: Chunk) -> None:
    """Writes a piece of a stream into a message, in place: a message made apart would have to be
    copied into the one that holds it."""
    message.stream = _STREAMS[chunk.stream]
    message.offset = chunk.offset
    message.data = chunk.data


def gap_message(gap: MissingRange) -> executions.OutputGap:
    """A range that is not kept."""
    return executions.OutputGap(stream=_STREAMS[gap.stream], offset=gap.offset, length=gap.length)


def failure_message(error: WorkroomError) -> executions.RequestFailed:
    """What a unary call's status would say."""
    return executions.RequestFailed(
        code=error.code.value[0],
        message=error.message,
        reason=error.reason,
        metadata=error.metadata,
    )


def file_message(info: FileInfo) -> files.FileInfo:
    """A file."""
    seconds, nanos = divmod(info.modified_ns, 1_000_000_000)
    return files.FileInfo(
        path=path_message(info.path),
        kind=_KINDS[info.kind],
        size_bytes=info.size,
        mode=info.mode,
        uid=info.uid,
        gid=info.gid,
        modify_time=Timestamp(seconds=seconds, nanos=nanos),
        link_target=info.target or b"",
    )


def path_message(path: bytes) -> files.FilePath:
    """A name; text where it is UTF-8."""
    try:
        return files.FilePath(text=path.decode())
    except UnicodeDecodeError:
        return files.FilePath(raw=path)


def timestamp(when: datetime) -> Timestamp:
    """A point in time."""
    since = when - _EPOCH
    seconds = since.days * 86_400 + since.seconds
    return Timestamp(seconds=seconds, nanos=since.microseconds * 1000)
