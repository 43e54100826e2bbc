"""Owns what happens around every call on a server: ids, trace, one log line, errors to statuses.

Only this module ends a call with an error. Payloads, metadata values and tokens are never logged.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, Never, TypeVar

import grpc
import structlog
from google.protobuf.message import DecodeError

from workroom.errors import Draining, Internal, InvalidField, MethodUnknown, WorkroomError
from workroom.rpc.drain import Drain
from workroom.rpc.handlers import Body, Context, Handler, body_of, handler_like, raising
from workroom.rpc.status import DETAILS_KEY, refused_by_library, to_status
from workroom.rpc.telemetry import REQUEST_ID, current_request_id, enter_call, new_request_id
from workroom.rpc.watchdog import Stacks, stack_of

log = structlog.get_logger(__name__)

T = TypeVar("T")

Continuation = Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]]

_QUIET_PREFIXES = ("/grpc.health.", "/grpc.reflection.")
_SHAPED = 256
"""Methods whose handler is kept in its one shape; there are fewer, but clients make up names."""
_OUR_FAULT = {grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN, grpc.StatusCode.DATA_LOSS}


class Calls:
    """Knows which handlers run, so that a server can wait for the last one's cleanup."""

    def __init__(self) -> None:
        self._running: dict[Awaitable[Any], str] = {}
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def running(self) -> dict[str, int]:
        """How many handlers of each method have not ended."""
        return dict(Counter(self._running.values()))

    async def idle(self) -> None:
        """Returns when no handler runs."""
        await self._idle.wait()

    async def run(self, method: str, handling: Awaitable[T]) -> T:
        """What `handling`, a handler of `method`, returns."""
        self._running[handling] = method
        self._idle.clear()
        try:
            return await handling
        finally:
            del self._running[handling]
            if not self._running:
                self._idle.set()

    def stacks(self) -> Stacks:
        """Where each handler stands; callable from any thread."""
        return {
            f"call {method} {id(handling):x}": stack_of(handling)
            for handling, method in tuple(self._running.items())
        }


class CallInterceptor(grpc.aio.ServerInterceptor):
    """Stands outermost on every server.

    A client always gets a status: a `WorkroomError` becomes its own with details, anything else
    INTERNAL "internal error" with the traceback in the log only, a cancellation that did not come
    from the client included. The client's deadline cancels the handler as the client itself does.
    """

    def __init__(self, drain: Drain, calls: Calls) -> None:
        self._drain = drain
        self._calls = calls
        self._log = log.bind()
        self._shaped: dict[str, tuple[Handler, Handler]] = {}

    async def intercept_service(
        self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails
    ) -> Handler:
        """Brings the method's handler into one shape and wraps it."""
        method = handler_call_details.method
        request_id, trace = enter_call(handler_call_details.invocation_metadata or ())
        structlog.contextvars.bind_contextvars(request_id=request_id, trace_id=trace.trace_id)
        handler = await self._found(continuation, handler_call_details)
        known = self._shaped.get(method)
        if known is not None and known[0] is handler:
            return known[1]
        shaped = handler_like(handler, self._wrapped(body_of(handler), method))
        if len(self._shaped) < _SHAPED:
            self._shaped[method] = (handler, shaped)
        return shaped

    async def _found(self, continuation: Continuation, details: grpc.HandlerCallDetails) -> Handler:
        """The handler, or one that fails: nothing raised here would reach the client intact."""
        method = details.method
        try:
            handler = await continuation(details)
        except asyncio.CancelledError:
            if _cancelled_from_outside():
                raise
            return raising(self._after_own_cancellation(method))
        except Exception as error:
            return raising(error)
        return handler or raising(MethodUnknown(f"there is no method {method}", method=method))

    def _wrapped(self, body: Body, method: str) -> Body:
        async def call(request: Any, context: Context) -> Any:
            start = time.monotonic()
            request_id = current_request_id() or new_request_id()
            try:
                response = await self._calls.run(method, body(request, context))
            except BaseException as failure:
                ending = self._ending(failure, method, context)
                if not isinstance(ending, WorkroomError):
                    self._log_call(method, ending, start)
                    raise
                self._log_call(method, ending.code, start)
                await _abort(context, ending, request_id)
            self._log_call(method, context.code() or grpc.StatusCode.OK, start)
            context.set_trailing_metadata((*context.trailing_metadata(), (REQUEST_ID, request_id)))
            return response

        return call

    def _ending(
        self, failure: BaseException, method: str, context: Context
    ) -> WorkroomError | grpc.StatusCode:
        """The error to send; or, where nothing more can be sent, the code to log."""
        if isinstance(failure, asyncio.CancelledError):
            if not _cancelled_from_outside():
                return self._after_own_cancellation(method)
            expired = context.time_remaining() == 0
            return grpc.StatusCode.DEADLINE_EXCEEDED if expired else grpc.StatusCode.CANCELLED
        if isinstance(failure, grpc.aio.AbortError):
            return context.code() or grpc.StatusCode.UNKNOWN
        if _connection_is_gone(failure):
            return grpc.StatusCode.CANCELLED
        if not isinstance(failure, Exception | BaseExceptionGroup):
            return grpc.StatusCode.UNKNOWN
        understood = _understood(failure)
        if understood is None:
            log.error("call failed", method=method, exc_info=failure)
        return understood or Internal("internal error")

    def _after_own_cancellation(self, method: str) -> WorkroomError:
        """A handler let a cancellation of its own escape; the client would wait for ever."""
        if self._drain.begun:
            return Draining("the server is stopping: call again, or resume the stream")
        log.error("call cancelled by itself", method=method, exc_info=True)
        return Internal("internal error")

    def _log_call(self, method: str, code: grpc.StatusCode, start: float) -> None:
        if code in _OUR_FAULT:
            write = self._log.error
        elif method.startswith(_QUIET_PREFIXES):
            write = self._log.debug
        else:
            write = self._log.info
        milliseconds = round((time.monotonic() - start) * 1000, 2)
        write("call finished", method=method, code=code.name, duration_ms=milliseconds)


async def _abort(context: Context, error: WorkroomError, request_id: str) -> Never:
    status = to_status(error)
    trailers = (
        *context.trailing_metadata(),
        (REQUEST_ID, request_id),
        (DETAILS_KEY, status.SerializeToString()),
    )
    try:
        await context.abort(error.code, status.message, trailers)
    except grpc.aio.InternalError as gone:
        raise asyncio.CancelledError from gone


def _cancelled_from_outside() -> bool:
    """Whether the call itself was cancelled, rather than something that its handler awaited."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _connection_is_gone(failure: BaseException) -> bool:
    """Whether a read or write failed because the call had ended, not because it was misused."""
    if not isinstance(failure, grpc.aio.BaseError) or isinstance(failure, grpc.aio.UsageError):
        return False
    return not refused_by_library(str(failure))


def _understood(failure: BaseException) -> WorkroomError | None:
    if isinstance(failure, WorkroomError):
        return failure
    if isinstance(failure, DecodeError):
        return InvalidField("request", "is not a message of the method's request type")
    if isinstance(failure, BaseExceptionGroup):
        inner = [_understood(part) for part in failure.exceptions]
        return inner[0] if all(inner) else None
    return None
