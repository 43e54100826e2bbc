"""Owns what a size means and the bounds of what a caller may ask for."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta

from container_runtime.records import Size

GIB = 2**30


@dataclass(frozen=True, slots=True)
class SizeLimits:
    """What a container of a size may use."""

    cpu_millis: int
    memory_bytes: int
    """Without swap."""
    pids: int
    """Processes and threads together."""
    disk_bytes: int
    """Of `/workspace` and `/tmp` together."""
    layer_bytes: int
    """Of everything else in its file system, beyond what the image has."""


SIZES: Mapping[Size, SizeLimits] = {
    Size.SMALL: SizeLimits(1000, 1 * GIB, 512, disk_bytes=4 * GIB, layer_bytes=2 * GIB),
    Size.MEDIUM: SizeLimits(2000, 4 * GIB, 1024, disk_bytes=8 * GIB, layer_bytes=4 * GIB),
    Size.LARGE: SizeLimits(4000, 16 * GIB, 2048, disk_bytes=16 * GIB, layer_bytes=8 * GIB),
}

Sizes = Mapping[Size, SizeLimits]


def sizes(disk_percent: int) -> Sizes:
    """What each size means on a node that gives this part of the usual room on disks."""
    return {
        size: replace(
            found,
            disk_bytes=found.disk_bytes * disk_percent // 100,
            layer_bytes=found.layer_bytes * disk_percent // 100,
        )
        for size, found in SIZES.items()
    }


REQUEST_ID_CHARACTERS = 128
LABELS = 32
LABEL_KEY_CHARACTERS = 63
LABEL_VALUE_CHARACTERS = 256
IDLE_TIMEOUT_MIN, IDLE_TIMEOUT_MAX = timedelta(seconds=10), timedelta(days=30)
RETENTION_MAX = timedelta(days=365)
MAX_LIFE_MIN, MAX_LIFE_MAX = timedelta(minutes=1), timedelta(days=365)
EVENTS_KEPT = 10_000

VARIABLES = 256
ENVIRONMENT_BYTES = 64 * 1024
ARGUMENTS = 1024
ARGUMENT_BYTES = 128 * 1024 - 1  # the kernel's bound, its final zero aside
ARGV_BYTES = 1024 * 1024
SCRIPT_BYTES = 128 * 1024
PATH_BYTES = 4095
TERMINAL_CHARACTERS = 1000
SIGNALS = 64
KILL_GRACE_MAX = timedelta(seconds=60)
TIMEOUT_MAX = timedelta(days=30)

SPOOL_BYTES_MIN, SPOOL_BYTES_MAX = 64 * 1024, GIB
STDIN_BYTES = 1024 * 1024
OUTPUT_BYTES, OUTPUT_BYTES_MAX = 64 * 1024, 1024 * 1024
FILE_PAGE, FILE_PAGE_MAX = 100, 1000
CREDIT_BYTES = 1024 * 1024
