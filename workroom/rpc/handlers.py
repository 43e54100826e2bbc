"""Owns the one shape into which every method handler is brought: a coroutine over raw bytes.

A handler may be written with `return`, `yield` or `context.write`; whoever wraps it need not know.
Parsing and serialization happen inside it, so that their failures are its own. A stream answers
its initial metadata at once, so that the client knows it was taken; a handler sends none itself.
"""

from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import grpc

Context = grpc.aio.ServicerContext[Any, Any]
if TYPE_CHECKING:
    Handler = grpc.RpcMethodHandler[Any, Any]
else:
    Handler = grpc.RpcMethodHandler  # generic only in the stubs
Body = Callable[[Any, Context], Awaitable[Any]]
"""Takes a request (or an iterator of them) and returns a response, or None when it streams."""


def body_of(handler: Handler) -> Body:
    """The handler as one coroutine function that has sent or returned all its responses."""
    behaviour = _behaviour(handler)
    parse = None if handler.request_streaming else handler.request_deserializer
    serialize = handler.response_serializer

    async def unary(request: Any, context: Context) -> Any:
        response = await behaviour(parse(request) if parse else request, context)
        return serialize(response) if serialize else response

    async def stream(request: Any, context: Context) -> None:
        # Sent before anything else: a status cannot follow a first message that was cut short.
        await context.send_initial_metadata(())
        result = behaviour(parse(request) if parse else request, context)
        if not hasattr(result, "__aiter__"):
            await result
            return
        async with aclosing(result) as responses:
            async for response in responses:
                await context.write(response)

    return stream if handler.response_streaming else unary


def handler_like(handler: Handler, body: Body) -> Handler:
    """A handler of the same kind that runs `body`, which was made from `body_of(handler)`."""
    if not handler.response_streaming:
        if handler.request_streaming:
            return grpc.stream_unary_rpc_method_handler(
                body, request_deserializer=handler.request_deserializer
            )
        return grpc.unary_unary_rpc_method_handler(body)
    if handler.request_streaming:
        return grpc.stream_stream_rpc_method_handler(
            body,
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )
    return grpc.unary_stream_rpc_method_handler(
        body, response_serializer=handler.response_serializer
    )


def raising(error: Exception) -> Handler:
    """A handler that fails with `error` before any message is read, for a method of any kind."""

    async def fail(_requests: Any, _context: Context) -> None:
        raise error

    return grpc.stream_stream_rpc_method_handler(fail)


def _behaviour(handler: Handler) -> Callable[[Any, Context], Any]:
    behaviour = (
        handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream
    )
    assert behaviour is not None, "a handler of no kind"
    return behaviour  # type: ignore[return-value]
