"""Owns the reviewer's own errors."""

import grpc

from workroom.errors import WorkroomError


class DecisionNotFound(WorkroomError):
    """There is no such decision, or its retention has ended."""

    code = grpc.StatusCode.NOT_FOUND
    reason = "DECISION_NOT_FOUND"


class RequestIdReused(WorkroomError):
    """The request id was used before, with another action."""

    code = grpc.StatusCode.ALREADY_EXISTS
    reason = "REQUEST_ID_REUSED"
