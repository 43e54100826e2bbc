"""Owns how many containers a node runs and keeps."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

from container_runtime.container import Container
from container_runtime.disk import Disk
from container_runtime.errors import NodeFull
from container_runtime.pool import Pool
from container_runtime.records import LIVE

RETRY_AFTER = timedelta(seconds=5)


@dataclass(frozen=True, slots=True)
class Capacity:
    """How many containers a node holds."""

    live: int
    """At a time, those in the pool included."""
    suspended: int
    """Those that have failed included."""


class Room:
    """Counts the containers that there are; nothing else changes them here."""

    def __init__(
        self, containers: Mapping[str, Container], pool: Pool, disk: Disk, capacity: Capacity
    ) -> None:
        self._containers = containers
        self._pool = pool
        self._disk = disk
        self._capacity = capacity

    def is_there(self) -> bool:
        """Whether another container may run."""
        return self._live() + self._pool.size < self._capacity.live

    def check(self) -> None:
        """Raises `NodeFull` or `HostDiskFull` when no other container may run, though what only
        waits in the pool gives way."""
        self._disk.check()
        if not self.is_there() and not self._pool.give_way():
            raise NodeFull(
                f"the node runs {self._live()} containers, as many as it may",
                retry_after=RETRY_AFTER,
                max_containers=str(self._capacity.live),
            )

    def check_new(self) -> None:
        """Raises `NodeFull` or `HostDiskFull` when no other container may be had, not even one
        that waits in the pool."""
        self._disk.check()
        kept = len(self._containers) - self._live()
        if kept >= self._capacity.suspended:
            raise NodeFull(
                f"the node keeps {kept} containers that are suspended or failed, as many as it may",
                retry_after=RETRY_AFTER,
                max_suspended=str(self._capacity.suspended),
            )

    def _live(self) -> int:
        return sum(each.state in LIVE for each in self._containers.values())
