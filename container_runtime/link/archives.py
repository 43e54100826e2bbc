"""Tar in and out of a container: a command of the link's own, by the supervisor's interpreter."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator

from container_runtime.link.encoding import file_error_of
from container_runtime.link.errors import ContainerLost, FileError
from container_runtime.model import Ending, Offsets, Outcome, Stream

MAX_ERROR = 4096


class ArchiveSink:
    """Takes one archive command's output; stdout waits for its consumer."""

    def __init__(self) -> None:
        self._chunks: asyncio.Queue[bytes | None] = asyncio.Queue(maxsize=1)
        self._errors = b""
        self._outcome: Outcome | None = None
        self._closed = False

    async def output(self, exec_id: str, stream: Stream, offset: int, data: bytes) -> None:
        if stream is Stream.STDERR:
            self._errors = (self._errors + data)[:MAX_ERROR]
        elif not self._closed:
            await self._chunks.put(data)

    async def ended(self, exec_id: str, outcome: Outcome) -> None:
        self._outcome = outcome
        if not self._closed:
            await self._chunks.put(None)

    async def resume(self, exec_id: str) -> Offsets | None:
        return None

    def close(self) -> None:
        """Nobody reads any more."""
        self._closed = True
        while not self._chunks.empty():
            self._chunks.get_nowait()

    async def chunks(self) -> AsyncGenerator[bytes]:
        """Stdout until the command ends."""
        while (chunk := await self._chunks.get()) is not None:
            yield chunk

    def check(self, path: bytes) -> None:
        """Raise what went wrong, once the command has ended."""
        outcome = self._outcome
        if outcome is None or outcome.ending is Ending.LOST:
            raise ContainerLost("the container is gone")
        if outcome.ending is Ending.EXITED and outcome.code == 0:
            return
        number, _, message = self._errors.decode("utf-8", "replace").partition(" ")
        if number.isdigit():
            raise file_error_of(int(number), message, path)
        what = message or outcome.message or str(outcome.ending)
        raise FileError(outcome.errno or 5, what, path)


async def pieces(chunks: AsyncIterator[bytes], size: int) -> AsyncGenerator[bytes]:
    """Chunks of at most `size` bytes."""
    async for chunk in chunks:
        for at in range(0, len(chunk), size):
            yield chunk[at : at + size]
