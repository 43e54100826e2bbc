"""Owns what a container uses now: what the kernel counts, and how full its disks are."""

import asyncio
from dataclasses import dataclass

from container_runtime.containers import Containers
from container_runtime.errors import ContainerNotActive
from container_runtime.layers import LayerWatch, measure
from container_runtime.limits import Sizes
from container_runtime.records import ContainerState
from container_runtime.stats import ControlGroups, ResourceStats
from container_runtime.volumes import Usage, Volumes


@dataclass(frozen=True, slots=True)
class DiskStats:
    """Bytes and files that a container has written."""

    volume: Usage | None
    """Of `/workspace` and `/tmp` together; `None` where they have no volume."""
    layer_bytes: int | None
    """Everywhere else; `None` where that cannot be seen."""
    layer_limit: int


@dataclass(frozen=True, slots=True)
class ContainerStats:
    """What a container uses now."""

    resources: ResourceStats
    disk: DiskStats


class UsageReader:
    """Reads what containers use. Belongs to one event loop."""

    def __init__(
        self, containers: Containers, volumes: Volumes, layers: LayerWatch, sizes: Sizes
    ) -> None:
        self._sizes = sizes
        self._containers = containers
        self._volumes = volumes
        self._layers = layers
        self._groups = ControlGroups()

    async def read(self, container_id: str) -> ContainerStats:
        """What a container uses; asking does not count as using it. Raises `ContainerNotFound`
        and `ContainerNotActive`."""
        container = self._containers.peek(container_id)
        try:
            if container.state is not ContainerState.ACTIVE:
                raise ProcessLookupError
            resources = await asyncio.to_thread(self._groups.read, container.pid)
        except (FileNotFoundError, ProcessLookupError):
            raise ContainerNotActive(
                f"container {container_id} does not run: it is {container.state}",
                container_id=container_id,
                state=container.state,
            ) from None
        size = self._sizes[container.record.request.size]
        layer_bytes = self._layers.used(container_id)
        if layer_bytes is None and container.layer is not None:
            layer_bytes = await measure(container.layer)
        usage = await self._volumes.usage(container_id)
        return ContainerStats(resources, DiskStats(usage, layer_bytes, size.layer_bytes))
