"""Owns the meaning of the supervisor link's errors to callers of the runtime."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import ClassVar

import grpc

from container_runtime.errors import ContainerNotActive, SupervisorUnavailable
from container_runtime.link import ContainerLost, FileError, SupervisorAway
from workroom.errors import WorkroomError

RETRY_AFTER = timedelta(seconds=1)


class FileFailure(WorkroomError):
    """A file cannot be used as asked; `path` is in the metadata."""

    code: ClassVar[grpc.StatusCode] = grpc.StatusCode.FAILED_PRECONDITION
    reason: ClassVar[str] = "FILE_ERROR"


class FileNotFound(FileFailure):
    """There is no such file."""

    code = grpc.StatusCode.NOT_FOUND
    reason = "FILE_NOT_FOUND"


class FilePermissionDenied(FileFailure):
    """The user may not do this."""

    code = grpc.StatusCode.PERMISSION_DENIED
    reason = "FILE_PERMISSION_DENIED"


class NotADirectory(FileFailure):
    """A directory is needed, and this is none."""

    reason = "NOT_A_DIRECTORY"


class IsADirectory(FileFailure):
    """Something else than a directory is needed."""

    reason = "IS_A_DIRECTORY"


class NotARegularFile(FileFailure):
    """A regular file is needed, and this is none."""

    reason = "NOT_A_REGULAR_FILE"


class DirectoryNotEmpty(FileFailure):
    """The directory holds something."""

    reason = "DIRECTORY_NOT_EMPTY"


class NoSpace(FileFailure):
    """The container's disk is full."""

    code = grpc.StatusCode.RESOURCE_EXHAUSTED
    reason = "NO_SPACE"


_BY_NUMBER: dict[int, type[FileFailure]] = {
    errno.ENOENT: FileNotFound,
    errno.EACCES: FilePermissionDenied,
    errno.EPERM: FilePermissionDenied,
    errno.EROFS: FilePermissionDenied,
    errno.ENOTDIR: NotADirectory,
    errno.EEXIST: NotADirectory,
    errno.EISDIR: IsADirectory,
    errno.EINVAL: NotARegularFile,
    errno.ENXIO: NotARegularFile,
    errno.ENOTEMPTY: DirectoryNotEmpty,
    errno.ENOSPC: NoSpace,
    errno.EDQUOT: NoSpace,
}


@contextmanager
def supervised(container_id: str) -> Iterator[None]:
    """Turns what the link raises into what callers are promised."""
    try:
        yield
    except SupervisorAway as error:
        raise SupervisorUnavailable(
            f"the supervisor of container {container_id} did not answer in time",
            retry_after=RETRY_AFTER,
            container_id=container_id,
        ) from error
    except ContainerLost as error:
        raise ContainerNotActive(
            f"container {container_id} is gone", container_id=container_id
        ) from error
    except FileError as error:
        kind = _BY_NUMBER.get(error.errno, FileFailure)
        metadata = {"container_id": container_id, **error.metadata}
        raise kind.rebuild(error.message, metadata) from error
