"""Owns the signal that a process is about to stop, which streams without an end must watch."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from workroom.errors import Draining


class Drain:
    """Begins once, when the server is told to stop; nothing ends it.

    A servicer whose streams have no end of their own takes one by its constructor:

        async with self._drain.interrupting():
            async for event in events:
                await context.write(to_message(event))
    """

    def __init__(self) -> None:
        self._begun = asyncio.Event()
        self._scopes: set[asyncio.Timeout] = set()

    @property
    def begun(self) -> bool:
        """Whether the process is stopping."""
        return self._begun.is_set()

    def begin(self) -> None:
        """Wakes whoever waits and ends every `interrupting` body. May be called again."""
        if self.begun:
            return
        self._begun.set()
        now = asyncio.get_running_loop().time()
        for scope in tuple(self._scopes):
            scope.reschedule(now)

    async def wait(self) -> None:
        """Returns when the drain begins."""
        await self._begun.wait()

    def check(self) -> None:
        """Raises `Draining` if the drain has begun."""
        if self.begun:
            raise _draining()

    @asynccontextmanager
    async def interrupting(self) -> AsyncIterator[None]:
        """Cancels the body when the drain begins, and then raises `Draining`.

        Cleanup in the body runs as for any cancellation.
        """
        self.check()
        try:
            async with asyncio.timeout(None) as scope:
                self._scopes.add(scope)
                try:
                    yield
                finally:
                    self._scopes.discard(scope)
        except TimeoutError:
            if not scope.expired():
                raise
            raise _draining() from None


def _draining() -> Draining:
    return Draining("the server is stopping: call again, or resume the stream by its offset")
