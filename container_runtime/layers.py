"""Owns the watch over what containers write outside of their volumes, which no quota bounds.

Looks are cheap: a layer is measured every few seconds, or at once when the disk loses room quickly.
"""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import structlog

from container_runtime.container import Container
from container_runtime.limits import Sizes
from container_runtime.records import ContainerState
from container_runtime.volumes import Volumes
from workroom.errors import WorkroomError

log = structlog.get_logger(__name__)

LOOK_EVERY = 1.0
"""Seconds between looks at the room on the disk."""
MEASURE_EVERY = 10.0
"""Seconds between measurements of one layer while the disk is quiet."""
MEASURE_SHARE = 20
"""A layer is measured at most this share of the time, as one part in so many."""
QUICK_BYTES = 64 * 2**20
"""When the disk has lost so much since a layer was measured, it is measured again."""
ENTRY_BYTES = 4096
"""What an entry counts at least: it takes an inode, of which the disk has as few."""
WALK_ENTRIES = 2000
"""A larger tree is measured by `du`, which does not hold up this process."""
DU_SECONDS = 120.0
LAST_RESERVE = 4
"""At this part of the room that is to stay free, the largest container is stopped."""


@dataclass(slots=True)
class _Look:
    """When a container's layer was last measured, how long that took, and what it found."""

    at: float
    took: float
    free: int
    used: int


class LayerWatch:
    """Stops containers that write more than their size allows. Belongs to one event loop."""

    def __init__(
        self,
        containers: Callable[[], Iterable[Container]],
        volumes: Volumes,
        stop: Callable[[Container, str], Awaitable[None]],
        sizes: Sizes,
        min_free_bytes: int,
    ) -> None:
        self._containers = containers
        self._volumes = volumes
        self._stop = stop
        self._sizes = sizes
        self._reserve = min_free_bytes // LAST_RESERVE
        self._looks: dict[str, _Look] = {}

    def used(self, container_id: str) -> int | None:
        """How much a container had written when it was last measured."""
        look = self._looks.get(container_id)
        return None if look is None else look.used

    async def watch_for_ever(self) -> None:
        """Look every second."""
        while True:
            await asyncio.sleep(LOOK_EVERY)
            try:
                await self.look()
            except (WorkroomError, OSError) as error:
                log.warning("layers not looked at", problem=str(error))

    async def look(self) -> None:
        """Measure what is due and stop what is over its bound."""
        active = [
            (each, each.layer)
            for each in self._containers()
            if each.state is ContainerState.ACTIVE and each.layer is not None
        ]
        known = {container.id for container, _ in active}
        self._looks = {key: look for key, look in self._looks.items() if key in known}
        for container, layer in active:
            await self._look_at(container, layer)
        if active and self._free(active[0][1]) < self._reserve:
            await self._stop_largest([container for container, _ in active])

    async def _look_at(self, container: Container, layer: Path) -> None:
        bound = self._bound(container)
        free = self._free(layer)
        last = self._looks.get(container.id)
        if last is not None and not _is_due(last, free):
            return
        begun = time.monotonic()
        try:
            used = await measure(layer)
        except (OSError, TimeoutError) as error:
            log.warning("layer not measured", container_id=container.id, problem=str(error))
            return
        now = time.monotonic()
        self._looks[container.id] = _Look(now, now - begun, free, used)
        if used > bound:
            await self._stop(
                container,
                f"disk full: {used} bytes were written outside of /workspace and /tmp, "
                f"{bound} may be",
            )

    def _bound(self, container: Container) -> int:
        size = self._sizes[container.record.request.size]
        # Without a volume, /workspace and /tmp are in the layer too.
        return size.layer_bytes + (0 if self._volumes.in_force else size.disk_bytes)

    async def _stop_largest(self, containers: Sequence[Container]) -> None:
        sizes = {}
        for container in containers:
            usage = await self._volumes.usage(container.id)
            sizes[container.id] = (self.used(container.id) or 0) + (
                usage.bytes_used if usage else 0
            )
        largest = max(containers, key=lambda each: sizes[each.id])
        log.error("node's disk nearly full", container_id=largest.id, used=sizes[largest.id])
        await self._stop(
            largest,
            f"disk full: the node's disk is, and this container held {sizes[largest.id]} bytes, "
            "more than any other",
        )

    def _free(self, layer: Path) -> int:
        try:
            found = os.statvfs(layer)
        except FileNotFoundError:
            return 2**63
        return found.f_bavail * found.f_frsize


def _is_due(last: _Look, free: int) -> bool:
    since = time.monotonic() - last.at
    if since < last.took * MEASURE_SHARE:
        return False
    return since >= MEASURE_EVERY or last.free - free > QUICK_BYTES


async def measure(directory: Path) -> int:
    """Bytes that a tree takes on the disk. Raises OSError and TimeoutError."""
    found = await asyncio.to_thread(_walk, directory)
    if found is not None:
        return found
    used = await _du(directory, "--block-size=1")
    entries = await _du(directory, "--inodes")
    return max(used, entries * ENTRY_BYTES)


def _walk(directory: Path) -> int | None:
    """As `measure`; `None` when there is too much to walk."""
    used = entries = 0
    waiting = [os.fspath(directory)]
    while waiting:
        with os.scandir(waiting.pop()) as found:
            for entry in found:
                entries += 1
                if entries > WALK_ENTRIES:
                    return None
                try:
                    status = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue
                used += max(status.st_blocks * 512, ENTRY_BYTES)
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
    return used


async def _du(directory: Path, unit: str) -> int:
    process = await asyncio.create_subprocess_exec(
        *("nice", "du", "--summarize", "--one-file-system", unit, os.fspath(directory)),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        async with asyncio.timeout(DU_SECONDS):
            output, _ = await process.communicate()
    except BaseException:
        if process.returncode is None:
            process.kill()
            await process.wait()
        raise
    # What vanished meanwhile makes `du` fail; its sum is good all the same.
    first = output.split(None, 1)
    if not first:
        raise OSError(f"du said nothing about {directory}")
    return int(first[0])
