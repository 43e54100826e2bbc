"""Owns the errors of volumes."""

import grpc

from workroom.errors import WorkroomError


class VolumeFailed(WorkroomError):
    """A container's size-limited file system could not be made, mounted or unmounted."""

    code = grpc.StatusCode.FAILED_PRECONDITION
    reason = "VOLUME_FAILED"
