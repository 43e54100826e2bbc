"""Owns how a model call can fail; the wording is made in `faults`."""

from datetime import timedelta
from typing import ClassVar, Self

import grpc

from workroom.errors import WorkroomError


class ModelError(WorkroomError):
    """A model call failed.

    `turn_code` is what the public API calls it in a turn's error. `retryable` says whether the
    same request, sent again, may succeed. Metadata: `model`, `base_url` (never credentials) and,
    where known, `status`, `server_code`, `param`, `attempts`.
    """

    turn_code: ClassVar[str] = "server_error"
    can_retry: ClassVar[bool] = False

    def __init__(
        self,
        message: str,
        *,
        retry_after: timedelta | None = None,
        retryable: bool | None = None,
        **metadata: str,
    ) -> None:
        super().__init__(message, retry_after=retry_after, **metadata)
        self.retryable = self.can_retry if retryable is None else retryable

    def after(self, attempts: int) -> Self:
        """The same error, saying how often the request was tried."""
        if attempts == 1:
            return self
        return type(self)(
            f"{self.message} (gave up after {attempts} attempts)",
            retry_after=self.retry_after,
            retryable=self.retryable,
            **(self.metadata | {"attempts": str(attempts)}),
        )


class ModelUnreachable(ModelError):
    """No connection to the model server could be made."""

    code = grpc.StatusCode.UNAVAILABLE
    reason = "MODEL_UNREACHABLE"
    turn_code = "connection_failed"
    can_retry = True


class ModelStreamBroken(ModelError):
    """The connection or the stream ended, or was garbled, before the answer was complete."""

    code = grpc.StatusCode.UNAVAILABLE
    reason = "MODEL_STREAM_BROKEN"
    turn_code = "connection_failed"
    can_retry = True


class ModelTimeout(ModelError):
    """The server was silent for too long, or the whole answer took too long."""

    code = grpc.StatusCode.UNAVAILABLE
    reason = "MODEL_TIMEOUT"
    turn_code = "request_timeout"
    can_retry = True


class ModelServerFailed(ModelError):
    """The server says that the fault is its own."""

    code = grpc.StatusCode.UNAVAILABLE
    reason = "MODEL_SERVER_FAILED"
    can_retry = True


class ModelRateLimited(ModelError):
    """The server asks to slow down."""

    code = grpc.StatusCode.RESOURCE_EXHAUSTED
    reason = "MODEL_RATE_LIMITED"
    turn_code = "rate_limit_exceeded"
    can_retry = True


class ModelQuotaExhausted(ModelError):
    """The account behind the key has nothing left; waiting does not help."""

    code = grpc.StatusCode.RESOURCE_EXHAUSTED
    reason = "MODEL_QUOTA_EXHAUSTED"
    turn_code = "usage_limit_exceeded"


class ModelAuthenticationFailed(ModelError):
    """The server refused our key. Not UNAUTHENTICATED: the caller's own key is fine."""

    code = grpc.StatusCode.FAILED_PRECONDITION
    reason = "MODEL_AUTHENTICATION_FAILED"
    turn_code = "authentication_error"


class ModelNotFound(ModelError):
    """The server has no model of that name."""

    code = grpc.StatusCode.NOT_FOUND
    reason = "MODEL_NOT_FOUND"
    turn_code = "resource_not_found"


class ContextLengthExceeded(ModelError):
    """The request is larger than the model's context."""

    code = grpc.StatusCode.INVALID_ARGUMENT
    reason = "CONTEXT_LENGTH_EXCEEDED"
    turn_code = "context_length_exceeded"


class ModelRequestRefused(ModelError):
    """The server refused the request as it stands; `param` names the field where it said so."""

    code = grpc.StatusCode.FAILED_PRECONDITION
    reason = "MODEL_REQUEST_REFUSED"
    turn_code = "invalid_request"


class ModelProtocolMismatch(ModelError):
    """What answers at the base URL does not speak the configured protocol."""

    code = grpc.StatusCode.FAILED_PRECONDITION
    reason = "MODEL_PROTOCOL_MISMATCH"
    turn_code = "connection_failed"


class ScriptFailed(ModelError):
    """A script has no answer for this request: no step left, or a quote that matches nothing."""

    code = grpc.StatusCode.FAILED_PRECONDITION
    reason = "SCRIPT_FAILED"
    turn_code = "invalid_request"


class ScriptInvalid(WorkroomError):
    """A script file cannot be played; the message has a line for each problem."""

    code = grpc.StatusCode.FAILED_PRECONDITION
    reason = "SCRIPT_INVALID"
