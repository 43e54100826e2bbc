"""Owns how events, usage and pools become response messages."""

from datetime import timedelta

from google.protobuf.duration_pb2 import Duration

from container_runtime.events import ContainerEvent, EventKind
from container_runtime.pool import PoolStatus
from container_runtime.servicers.messages import SIZE_VALUES, timestamp
from container_runtime.stats import ResourceStats
from container_runtime.usage import ContainerStats, DiskStats
from workroom.runtime.v1 import containers_pb2 as pb

_KINDS = {
    EventKind.CREATED: pb.ContainerEvent.KIND_CREATED,
    EventKind.ACTIVE: pb.ContainerEvent.KIND_ACTIVE,
    EventKind.SUSPENDED: pb.ContainerEvent.KIND_SUSPENDED,
    EventKind.RESUMED: pb.ContainerEvent.KIND_RESUMED,
    EventKind.FAILED: pb.ContainerEvent.KIND_FAILED,
    EventKind.DELETED: pb.ContainerEvent.KIND_DELETED,
}


def event_message(event: ContainerEvent) -> pb.ContainerEvent:
    """Something that happened to a container."""
    return pb.ContainerEvent(
        sequence=event.sequence,
        event_time=timestamp(event.when),
        container_id=event.container_id,
        project_id=event.project_id,
        kind=_KINDS[event.kind],
        message=event.message,
    )


def pool_message(status: PoolStatus) -> pb.WarmPool:
    """A pool and how it is doing."""
    return pb.WarmPool(
        image=status.target.image,
        size=SIZE_VALUES[status.target.size],
        target=status.target.count,
        ready=status.ready,
    )


def stats_message(stats: ContainerStats) -> pb.GetContainerStatsResponse:
    """What a container uses."""
    message = _resources_message(stats.resources)
    message.disk.CopyFrom(_disk_message(stats.disk))
    return message


def _resources_message(found: ResourceStats) -> pb.GetContainerStatsResponse:
    cpu, memory = found.cpu, found.memory
    return pb.GetContainerStatsResponse(
        cpu=pb.CpuStats(
            total=_duration(cpu.total),
            user=_duration(cpu.user),
            system=_duration(cpu.system),
            throttled=_duration(cpu.throttled),
        ),
        memory=pb.MemoryStats(
            current_bytes=memory.current,
            working_set_bytes=memory.working_set,
            peak_bytes=memory.peak,
            limit_bytes=memory.limit or 0,
            out_of_memory_kills=memory.out_of_memory_kills,
        ),
        pids=pb.PidStats(current=found.pids.current, limit=found.pids.limit or 0),
        io=pb.IoStats(read_bytes=found.io.read_bytes, written_bytes=found.io.written_bytes),
    )


def _disk_message(disk: DiskStats) -> pb.DiskStats:
    message = pb.DiskStats(layer_bytes=disk.layer_bytes, layer_limit_bytes=disk.layer_limit)
    if disk.volume is not None:
        message.volume_bytes = disk.volume.bytes_used
        message.volume_limit_bytes = disk.volume.bytes_total
        message.volume_files = disk.volume.files_used
        message.volume_limit_files = disk.volume.files_total
    return message


def _duration(span: timedelta) -> Duration:
    message = Duration()
    message.FromTimedelta(span)
    return message
