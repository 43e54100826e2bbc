"""Owns the egress proxy's own errors."""

import grpc

from workroom.errors import WorkroomError


class AttachmentNotFound(WorkroomError):
    """The container is not attached."""

    code = grpc.StatusCode.NOT_FOUND
    reason = "ATTACHMENT_NOT_FOUND"


class RevisionMismatch(WorkroomError):
    """The policy has changed since the caller last saw it."""

    code = grpc.StatusCode.ABORTED
    reason = "REVISION_MISMATCH"
