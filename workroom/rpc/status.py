"""Owns the translation between errors and `google.rpc.Status`, in both directions."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import grpc
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2

from workroom.errors import DOMAIN, InvalidField, RemoteError, WorkroomError, known_class

DETAILS_KEY = "grpc-status-details-bin"
"""The trailing metadata that carries a serialized `google.rpc.Status`."""

MESSAGE_LIMIT = 768
"""Bytes of a message that are sent; trailers above 8 KiB would lose the whole status."""

METADATA_ENTRIES = 12
METADATA_VALUE_LIMIT = 128
"""Entries of an error's metadata that are sent, and bytes of each value."""

_CODES = {code.value[0]: code for code in grpc.StatusCode}


def to_status(error: WorkroomError) -> status_pb2.Status:
    """The status that tells `error` to a client: always an `ErrorInfo`, and what else applies."""
    message = _shortened(error.message, MESSAGE_LIMIT)
    status = status_pb2.Status(code=error.code.value[0], message=message)
    metadata = {
        key: _shortened(value, METADATA_VALUE_LIMIT)
        for key, value in list(error.metadata.items())[:METADATA_ENTRIES]
    }
    status.details.add().Pack(
        error_details_pb2.ErrorInfo(domain=DOMAIN, reason=error.reason, metadata=metadata)
    )
    if isinstance(error, InvalidField):
        violation = error_details_pb2.BadRequest.FieldViolation(
            field=_shortened(error.field, METADATA_VALUE_LIMIT),
            description=_shortened(error.problem, MESSAGE_LIMIT),
            reason=error.reason,
        )
        status.details.add().Pack(error_details_pb2.BadRequest(field_violations=[violation]))
    if error.retry_after is not None:
        retry = error_details_pb2.RetryInfo()
        retry.retry_delay.FromTimedelta(error.retry_after)
        status.details.add().Pack(retry)
    return status


def from_status(status: status_pb2.Status) -> WorkroomError:
    """The error that `status` tells: of the class that sent it where that class is loaded here."""
    code = _CODES.get(status.code, grpc.StatusCode.UNKNOWN)
    info = error_details_pb2.ErrorInfo()
    retry = error_details_pb2.RetryInfo()
    retry_after = None
    for detail in status.details:
        if detail.Is(info.DESCRIPTOR):
            detail.Unpack(info)
        elif detail.Is(retry.DESCRIPTOR):
            detail.Unpack(retry)
            retry_after = retry.retry_delay.ToTimedelta()
    kind = known_class(code, info.reason) if info.domain == DOMAIN else None
    if kind is not None:
        return kind.rebuild(status.message, info.metadata, retry_after)
    return RemoteError(
        status.message,
        code=code,
        reason=info.reason or code.name,
        retry_after=retry_after,
        metadata=info.metadata,
    )


def from_rpc_error(error: grpc.aio.AioRpcError) -> WorkroomError:
    """The error behind a failed call; a status without details becomes a `RemoteError`."""
    raw = _details_of(error.trailing_metadata() or ())
    if raw is not None:
        try:
            return from_status(status_pb2.Status.FromString(raw))
        except DecodeError:
            pass
    code = error.code()
    return RemoteError(error.details() or code.name, code=code, reason=code.name)


@contextmanager
def translate_errors() -> Iterator[None]:
    """Turns the failure of a gRPC call in the body into the error that it tells."""
    try:
        yield
    except grpc.aio.AioRpcError as error:
        raise from_rpc_error(error) from error


def refused_by_library(text: str) -> bool:
    """Whether an `InternalError` with this text tells of misuse (two writes at once).

    The library raises the same class when an operation failed because the call had ended; only
    the text tells which.
    """
    return "grpc_call_start_batch" in text


def _details_of(
    metadata: grpc.aio.Metadata | Sequence[tuple[str, str | bytes]],
) -> bytes | None:
    for key, value in metadata:
        if key == DETAILS_KEY and isinstance(value, bytes):
            return value
    return None


def _shortened(text: str, limit: int) -> str:
    raw = text.encode("utf-8", "replace")
    if len(raw) <= limit:
        return raw.decode()
    return raw[: limit - 3].decode("utf-8", "ignore") + "…"
