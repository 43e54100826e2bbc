"""Owns the errors that cross a service boundary: each class carries its status code and reason.

Only the server interceptor turns one into a gRPC status, and only the client rebuilds it; no
other file names a status code.
"""

from datetime import timedelta
from typing import ClassVar

import grpc

DOMAIN = "workroom"
"""The `domain` of every `google.rpc.ErrorInfo` that Workroom sends."""


class WorkroomError(Exception):
    """A failure that the caller can understand.

    `message` says what was wrong, where, and what is allowed. Every variable part of it is also
    in `metadata`, so that programs need not parse the text.
    """

    code: ClassVar[grpc.StatusCode] = grpc.StatusCode.UNKNOWN
    reason: ClassVar[str] = "UNKNOWN"

    def __init__(
        self, message: str, *, retry_after: timedelta | None = None, **metadata: str
    ) -> None:
        super().__init__(message)
        self.message = message
        self.retry_after = retry_after
        self.metadata = metadata


class InvalidField(WorkroomError):
    """A request field has a value that is not allowed; sent with a `BadRequest` detail."""

    code = grpc.StatusCode.INVALID_ARGUMENT
    reason = "INVALID_FIELD"

    def __init__(self, field: str, problem: str, **metadata: str) -> None:
        super().__init__(f"{field}: {problem}", field=field, **metadata)
        self.field = field
        self.problem = problem


class NotSupported(InvalidField):
    """A request field asks for something that this version does not do."""

    reason = "NOT_SUPPORTED"


class Unauthenticated(WorkroomError):
    """The call carried no key, or one that is not known."""

    code = grpc.StatusCode.UNAUTHENTICATED
    reason = "UNAUTHENTICATED"


class Draining(WorkroomError):
    """The server is stopping; the call can be made again, or the stream resumed by offset."""

    code = grpc.StatusCode.UNAVAILABLE
    reason = "DRAINING"
