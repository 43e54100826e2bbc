"""Owns the errors that cross a service boundary: each class carries its status code and reason.

Only the server interceptor turns one into a gRPC status, and only the client rebuilds it; no
other file names a status code.
"""

from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import ClassVar, Self

import grpc

DOMAIN = "workroom"
"""The `domain` of every `google.rpc.ErrorInfo` that Workroom sends."""


class WorkroomError(Exception):
    """A failure that the caller can understand.

    `message` says what was wrong, where, and what is allowed. Every variable part of it is also
    in `metadata`, so that programs need not parse the text. What a subclass shows beyond that is
    a property over `metadata`: a client gets the class back without its constructor being called.
    """

    code: ClassVar[grpc.StatusCode] = grpc.StatusCode.UNKNOWN
    reason: ClassVar[str] = "UNKNOWN"

    def __init__(
        self, message: str, *, retry_after: timedelta | None = None, **metadata: str
    ) -> None:
        super().__init__(message)
        self.message = message
        self.retry_after = retry_after
        self.metadata: dict[str, str] = metadata

    @classmethod
    def rebuild(
        cls, message: str, metadata: Mapping[str, str], retry_after: timedelta | None = None
    ) -> Self:
        """An error of this class as another process raised it."""
        error = cls.__new__(cls, message)
        error.message = message
        error.retry_after = retry_after
        error.metadata = dict(metadata)
        return error


class InvalidField(WorkroomError):
    """A request field has a value that is not allowed; sent with a `BadRequest` detail."""

    code = grpc.StatusCode.INVALID_ARGUMENT
    reason = "INVALID_FIELD"

    def __init__(self, field: str, problem: str, **metadata: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.metadata = {"field": field, **metadata}

    @property
    def field(self) -> str:
        """Path of the field in the request."""
        return self.metadata.get("field", "")

    @property
    def problem(self) -> str:
        """What is wrong with the value, and what is allowed."""
        return self.message.removeprefix(f"{self.field}: ")


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


class MethodUnknown(WorkroomError):
    """The server has no such method."""

    code = grpc.StatusCode.UNIMPLEMENTED
    reason = "METHOD_UNKNOWN"


class Internal(WorkroomError):
    """The server failed in a way that is its own fault; what happened is only in its log."""

    code = grpc.StatusCode.INTERNAL
    reason = "INTERNAL"


class RemoteError(WorkroomError):
    """A call failed with a status that names no class known here, or never reached a server."""

    def __init__(
        self,
        message: str,
        *,
        code: grpc.StatusCode,
        reason: str,
        retry_after: timedelta | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message, retry_after=retry_after)
        self.code = code  # type: ignore[misc]
        self.reason = reason  # type: ignore[misc]
        self.metadata = dict(metadata or {})


def known_class(code: grpc.StatusCode, reason: str) -> type[WorkroomError] | None:
    """The loaded error class that has this code and reason; the first defined, if several do."""
    for kind in _descendants(WorkroomError):
        if kind.reason == reason and kind.code == code:
            return kind
    return None


def _descendants(kind: type[WorkroomError]) -> Iterator[type[WorkroomError]]:
    for child in kind.__subclasses__():
        if child is not RemoteError:
            yield child
            yield from _descendants(child)
