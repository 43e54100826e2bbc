"""Owns the errors of talking to a container's supervisor."""

import os
from typing import ClassVar

import grpc

from workroom.errors import WorkroomError


class SupervisorAway(WorkroomError):
    """The container lives but its supervisor is not connected now; safe to try again."""

    code = grpc.StatusCode.UNAVAILABLE
    reason = "SUPERVISOR_AWAY"


class ContainerLost(WorkroomError):
    """The container's main process is gone, and with it every execution."""

    code = grpc.StatusCode.ABORTED
    reason = "CONTAINER_LOST"


class ExecutionNotFound(WorkroomError):
    """The link knows no such execution: never started, or already recorded as ended."""

    code = grpc.StatusCode.NOT_FOUND
    reason = "EXECUTION_NOT_FOUND"


class StdinGap(WorkroomError):
    """Stdin was sent from beyond what arrived so far; metadata `expected` says where to begin."""

    code = grpc.StatusCode.OUT_OF_RANGE
    reason = "STDIN_GAP"


class StdinClosed(WorkroomError):
    """Stdin was ended, or was never opened, or the command closed it."""

    code = grpc.StatusCode.FAILED_PRECONDITION
    reason = "STDIN_CLOSED"


class TooManyExecutions(WorkroomError):
    """The container runs as many executions as it may."""

    code = grpc.StatusCode.RESOURCE_EXHAUSTED
    reason = "TOO_MANY_EXECUTIONS"


class ExecutionRepeated(WorkroomError):
    """An execution of this id ran before and is recorded; it is not run again."""

    code = grpc.StatusCode.ALREADY_EXISTS
    reason = "EXECUTION_REPEATED"


class FileError(WorkroomError):
    """A file verb failed inside the container; `errno` is the kernel's."""

    code = grpc.StatusCode.FAILED_PRECONDITION
    reason = "FILE_ERROR"

    def __init__(self, errno_: int, message: str, path: bytes) -> None:
        shown = path.decode("utf-8", "backslashreplace")
        super().__init__(
            f"{shown}: {message or os.strerror(errno_)}", path=shown, errno=str(errno_)
        )
        self.errno = errno_


class FileMissing(FileError):
    """ENOENT or ENOTDIR."""

    code: ClassVar[grpc.StatusCode] = grpc.StatusCode.NOT_FOUND
    reason = "FILE_NOT_FOUND"


class FileExists(FileError):
    """EEXIST."""

    code: ClassVar[grpc.StatusCode] = grpc.StatusCode.ALREADY_EXISTS
    reason = "FILE_EXISTS"


class FileDenied(FileError):
    """EACCES, EPERM or EROFS for the user that acted."""

    code: ClassVar[grpc.StatusCode] = grpc.StatusCode.PERMISSION_DENIED
    reason = "FILE_DENIED"


class DiskFull(FileError):
    """ENOSPC or EDQUOT inside the container."""

    code: ClassVar[grpc.StatusCode] = grpc.StatusCode.RESOURCE_EXHAUSTED
    reason = "FILE_DISK_FULL"
