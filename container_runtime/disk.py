"""Owns the node's disk: refuses new work before it is full, and lends threads for slow writes."""

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from container_runtime.errors import HostDiskFull

SpoolThreads = ThreadPoolExecutor

_FRESH = 1.0  # seconds that a look at the disk is good for


class Disk:
    """Watches the file system under one directory."""

    def __init__(
        self, directory: Path, min_free_bytes: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._directory = directory
        self._min_free = min_free_bytes
        self._clock = clock
        self._free = 0
        self._looked = float("-inf")

    def check(self) -> None:
        """Raises `HostDiskFull` when there is less room than is to be kept free."""
        now = self._clock()
        if now - self._looked > _FRESH or self._free < self._min_free:
            found = os.statvfs(self._directory)
            self._free = found.f_bavail * found.f_frsize
            self._looked = now
        if self._free < self._min_free:
            raise HostDiskFull(
                f"{self._free} bytes are free on the node's disk, {self._min_free} must stay so",
                free_bytes=str(self._free),
                min_free_bytes=str(self._min_free),
            )
