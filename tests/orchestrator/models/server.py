"""A model server for tests: real HTTP on loopback, and replies that misbehave as told."""

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from aiohttp import web

Reply = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True)
class Received:
    path: str
    headers: Mapping[str, str]
    body: dict[str, Any]


class RunningServer:
    """Answers with `replies`, one after the other, then with `always`."""

    def __init__(self) -> None:
        self.base_url = ""
        self.received: list[Received] = []
        self.replies: deque[Reply] = deque()
        self.always: Reply | None = None
        self.stalled = asyncio.Event()
        self.disconnected = asyncio.Event()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.received.append(Received(request.path, request.headers, await request.json()))
        reply = self.replies.popleft() if self.replies else self.always
        assert reply is not None, "more requests than replies"
        return await reply(request)

    def stall(self, *chunks: bytes) -> Reply:
        """Send this much, then nothing until the client goes away."""

        async def reply(request: web.Request) -> web.StreamResponse:
            response = await _begin(request, chunks)
            self.stalled.set()
            try:
                await asyncio.Event().wait()
            finally:
                self.disconnected.set()
            return response

        return reply


def stream(*chunks: bytes) -> Reply:
    async def reply(request: web.Request) -> web.StreamResponse:
        response = await _begin(request, chunks)
        await response.write_eof()
        return response

    return reply


def drop(*chunks: bytes) -> Reply:
    """Send this much, then cut the connection."""

    async def reply(request: web.Request) -> web.StreamResponse:
        if not chunks:
            assert request.transport is not None
            request.transport.close()
            return web.Response()
        response = await _begin(request, chunks)
        assert request.transport is not None
        request.transport.close()
        return response

    return reply


def status(code: int, body: object, headers: Mapping[str, str] | None = None) -> Reply:
    async def reply(request: web.Request) -> web.StreamResponse:
        text = body if isinstance(body, str) else json.dumps(body)
        return web.Response(status=code, text=text, headers=headers)

    return reply


def events(*objects: object, end: str = "\n\n") -> bytes:
    """Objects as server-sent events; a string goes in as it is."""
    texts = (o if isinstance(o, str) else json.dumps(o, ensure_ascii=False) for o in objects)
    return "".join(f"data: {text}{end}" for text in texts).encode()


async def _begin(request: web.Request, chunks: tuple[bytes, ...]) -> web.StreamResponse:
    response = web.StreamResponse(headers={"content-type": "text/event-stream"})
    await response.prepare(request)
    for chunk in chunks:
        await response.write(chunk)
    return response


@asynccontextmanager
async def running_server() -> AsyncIterator[RunningServer]:
    server = RunningServer()
    app = web.Application(client_max_size=64 * 1024 * 1024)
    app.router.add_post("/{path:.*}", server.handle)
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        server.base_url = f"http://127.0.0.1:{port}/v1"
        yield server
    finally:
        await runner.cleanup()
