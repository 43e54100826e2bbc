"""The host's side of the supervisor's protocol. `Link` is all that others need."""

from container_runtime.link.errors import (
    ContainerLost,
    DiskFull,
    ExecutionNotFound,
    ExecutionRepeated,
    FileDenied,
    FileError,
    FileExists,
    FileMissing,
    StdinClosed,
    StdinGap,
    SupervisorAway,
    TooManyExecutions,
)
from container_runtime.link.link import Link

__all__ = [
    "ContainerLost",
    "DiskFull",
    "ExecutionNotFound",
    "ExecutionRepeated",
    "FileDenied",
    "FileError",
    "FileExists",
    "FileMissing",
    "Link",
    "StdinClosed",
    "StdinGap",
    "SupervisorAway",
    "TooManyExecutions",
]
