"""File verbs over a connection: requests in flight, their chunks and answers."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable

from container_runtime.agent import wire
from container_runtime.agent.files import FLAG_OPTION, FLAG_ROOT
from container_runtime.link import encoding
from container_runtime.link.connection import Peer
from container_runtime.link.errors import SupervisorAway

MAX_REQUESTS = wire.MAX_FILE_REQUESTS // 2


class Request:
    """One verb on one connection."""

    def __init__(self, peer: Peer, channel: int, path: bytes) -> None:
        self.peer, self.channel, self.path = peer, channel, path
        self.changed = asyncio.Event()
        self.answer: list[wire.Value] | None = None
        self.problem: Exception | None = None
        self.chunks: deque[bytes] = deque()
        self.acknowledged = 0
        self._received = self._consumed = 0

    @property
    def over(self) -> bool:
        return self.answer is not None or self.problem is not None

    def frame(self, kind: int, offset: int, payload: bytes) -> None:
        """Take a frame of this request."""
        if kind == wire.FILE_DATA:
            self._received += len(payload)
            if offset + len(payload) != self._received or (
                self._received - self._consumed > wire.WINDOW
            ):
                raise wire.ProtocolError("file data out of order")
            self.chunks.append(payload)
        elif kind == wire.FILE_ACK:
            self.acknowledged = offset
        elif kind == wire.FILE_RESULT:
            self.answer = wire.unpack(payload)
        elif kind == wire.FILE_ERROR:
            self.problem = encoding.file_error(payload, self.path)
        else:
            raise wire.ProtocolError("out of turn")
        self.changed.set()

    def fail(self, problem: Exception) -> None:
        """End it with an error."""
        if not self.over:
            self.problem = problem
            self.changed.set()

    async def change(self) -> None:
        """Wait for the next frame."""
        await self.changed.wait()
        self.changed.clear()

    async def result(self) -> list[wire.Value]:
        """Wait for the answer. Raises what went wrong."""
        while not self.over:
            await self.change()
        if self.problem is not None:
            raise self.problem
        assert self.answer is not None
        return self.answer

    def send(self, kind: int, offset: int = 0, payload: bytes = b"") -> None:
        self.peer.send(wire.frame(kind, self.channel, offset=offset, payload=payload))

    def consumed(self, chunk: bytes) -> None:
        """The consumer has a chunk."""
        self._consumed += len(chunk)
        self.send(wire.FILE_ACK, self._consumed)


class FileRequests:
    """The requests of the present connection; at most MAX_REQUESTS at once, others wait."""

    def __init__(self, connected: Callable[[], Awaitable[Peer]]) -> None:
        self._connected = connected
        self._requests: dict[int, Request] = {}
        self._next = 1
        self._free = asyncio.Semaphore(MAX_REQUESTS)

    def frame(self, kind: int, channel: int, offset: int, payload: bytes) -> None:
        """Handle a file frame from the supervisor."""
        request = self._requests.get(channel)
        if request is not None:
            request.frame(kind, offset, payload)
        elif channel >= self._next:
            raise wire.ProtocolError("an unknown request")

    def fail_all(self, problem: Exception) -> None:
        """The connection is gone."""
        for request in self._requests.values():
            request.fail(problem)
        self._requests.clear()

    async def simple(
        self,
        verb: int,
        path: bytes,
        *,
        root: bool,
        option: bool = False,
        other: bytes = b"",
        limit: int = 0,
        mode: int = 0,
    ) -> list[wire.Value]:
        """Do a verb of one step."""
        async with self._free:
            request = await self._open(verb, path, root, option, other, limit, -1, mode)
            try:
                return await request.result()
            finally:
                self._close(request)

    async def read(
        self, path: bytes, offset: int, length: int | None, root: bool
    ) -> AsyncGenerator[bytes]:
        """A file's chunks."""
        wanted = -1 if length is None else length
        async with self._free:
            request = await self._open(wire.READ, path, root, False, b"", offset, wanted, 0)
            try:
                while True:
                    while request.chunks:
                        chunk = request.chunks.popleft()
                        request.consumed(chunk)
                        yield chunk
                    if request.over:
                        break
                    await request.change()
                await request.result()
            finally:
                self._close(request)

    async def write(
        self, path: bytes, chunks: AsyncIterator[bytes], mode: int, parents: bool, root: bool
    ) -> list[wire.Value]:
        """Replace a file's content."""
        async with self._free:
            request = await self._open(wire.WRITE, path, root, parents, b"", 0, -1, mode)
            try:
                sent = 0
                async for chunk in chunks:
                    view = memoryview(chunk)
                    while view and not request.over:
                        room = wire.WINDOW - (sent - request.acknowledged)
                        if room <= 0:
                            await request.change()
                            continue
                        piece = bytes(view[: min(room, wire.MAX_PAYLOAD)])
                        request.send(wire.FILE_DATA, sent, piece)
                        sent += len(piece)
                        view = view[len(piece) :]
                        await request.peer.room()
                    if request.over:
                        break
                if not request.over:
                    request.send(wire.FILE_END, sent)
                return await request.result()
            finally:
                self._close(request)

    async def _open(
        self,
        verb: int,
        path: bytes,
        root: bool,
        option: bool,
        other: bytes,
        first: int,
        second: int,
        mode: int,
    ) -> Request:
        for name in (path, other):
            if len(name) > wire.MAX_PATH:
                raise encoding.file_error_of(36, "", name)
        peer = await self._connected()
        request = Request(peer, self._next, path)
        self._next += 1
        self._requests[request.channel] = request
        flags = FLAG_ROOT * root | FLAG_OPTION * option
        values: tuple[wire.Value, ...] = (verb, flags, path, other, first, second, mode)
        peer.send(wire.control(wire.FILE_OPEN, request.channel, *values))
        return request

    def _close(self, request: Request) -> None:
        if self._requests.pop(request.channel, None) is not None and not request.over:
            request.send(wire.FILE_CANCEL)


def away() -> SupervisorAway:
    """The error of requests whose connection broke."""
    return SupervisorAway("the supervisor's connection broke during a file request")
