"""A service of strings with whatever methods a test gives it, and the calls to reach it."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.wrappers_pb2 import StringValue

from workroom.rpc.channel import open_channel
from workroom.rpc.server import Listener, serving

SERVICE = "workroom.test.v1.EchoService"

_KINDS = {
    "unary_unary": grpc.unary_unary_rpc_method_handler,
    "unary_stream": grpc.unary_stream_rpc_method_handler,
    "stream_unary": grpc.stream_unary_rpc_method_handler,
    "stream_stream": grpc.stream_stream_rpc_method_handler,
}


class Echo:
    """Each behaviour is served as the method `Call` of the kind named."""

    def __init__(self, **behaviours: Callable[..., Any]) -> None:
        self._handlers = {
            _method(kind): _KINDS[kind](
                behaviour,
                request_deserializer=StringValue.FromString,
                response_serializer=StringValue.SerializeToString,
            )
            for kind, behaviour in behaviours.items()
        }

    def register(self, server: grpc.aio.Server) -> None:
        server.add_registered_method_handlers(SERVICE, self._handlers)


class Caller:
    """The client's side."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.channel: Any = channel
        self.unary_unary = self._bound("unary_unary")
        self.unary_stream = self._bound("unary_stream")
        self.stream_unary = self._bound("stream_unary")
        self.stream_stream = self._bound("stream_stream")

    def _bound(self, kind: str) -> Any:
        return getattr(self.channel, kind)(
            f"/{SERVICE}/{_method(kind)}",
            request_serializer=StringValue.SerializeToString,
            response_deserializer=StringValue.FromString,
        )


@asynccontextmanager
async def echoing(folder: Path, **given: Any) -> AsyncIterator[Caller]:
    """Serves the behaviours in `given` on a socket in `folder`, and yields a `Caller`.

    `channel` are the settings of its channel; the rest are those of the server.
    """
    channel = given.pop("channel", {})
    behaviours = {kind: given.pop(kind) for kind in tuple(given) if kind in _KINDS}
    listener = Listener(f"unix:{folder}/run/echo.sock")
    async with serving(
        [Echo(**behaviours).register], listener, services=[SERVICE], **given
    ) as server:
        async with open_channel(server.address, **channel) as opened:
            yield Caller(opened)


async def eventually(condition: Callable[[], Any], limit: float = 5) -> Any:
    """Waits until `condition()` is true, and returns what it returned."""
    deadline = time.monotonic() + limit
    while not (found := condition()):
        assert time.monotonic() < deadline, "the condition did not come true in time"
        await asyncio.sleep(0.005)
    return found


def text(value: str | None) -> StringValue:
    return StringValue(value=value)


def _method(kind: str) -> str:
    return "".join(part.title() for part in kind.split("_"))
