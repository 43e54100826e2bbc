"""Owns living with other orchestrators on one database: what they write, and what they leave."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager

import structlog

from orchestrator.errors import DatabaseUnavailable, SessionNotFound
from orchestrator.sessions.feed import Feeds
from orchestrator.sessions.workers import Workers
from orchestrator.store.database import Database
from orchestrator.store.leases import Leases
from orchestrator.store.reading import SessionReader

log = structlog.get_logger(__name__)

_AGAIN_SECONDS = 0.5
"""How long after a failure the database is tried again."""


class Neighbours:
    """Follows the other orchestrators, and takes over what those that are no more have left."""

    def __init__(
        self,
        database: Database,
        leases: Leases,
        reader: SessionReader,
        feeds: Feeds,
        workers: Workers,
        name: str,
    ) -> None:
        self._database = database
        self._leases = leases
        self._reader = reader
        self._feeds = feeds
        self._workers = workers
        self._name = name
        self._heard: asyncio.Queue[str] = asyncio.Queue()
        self._waiting: set[str] = set()

    @asynccontextmanager
    async def followed(self) -> AsyncIterator[None]:
        """While the body runs; does nothing where the database is not shared."""
        if not self._database.is_shared:
            yield
            return
        async with asyncio.TaskGroup() as tasks:
            following = [
                tasks.create_task(work())
                for work in (self._listen_forever, self._follow_forever, self._live_forever)
            ]
            try:
                yield
            finally:
                for task in following:
                    task.cancel()

    async def _live_forever(self) -> None:
        while True:
            try:
                await self._leases.stay_alive()
                for session_id in await self._leases.abandoned():
                    if not self._workers.is_busy(session_id):
                        self._workers.wake(session_id)
            except DatabaseUnavailable as error:
                log.warning("the database does not answer", detail=error.message)
            await asyncio.sleep(self._leases.beat.total_seconds())

    async def _listen_forever(self) -> None:
        while True:
            try:
                # imported here: a driver that SQLite's users do not load
                from orchestrator.store.notices import notices

                async with aclosing(notices(self._database.url, self._name)) as heard:
                    async for session_id in heard:
                        for name in (session_id,) if session_id else self._feeds.watched():
                            self._note(name)
            except DatabaseUnavailable as error:
                log.warning("the others are not heard", detail=error.message)
            await asyncio.sleep(_AGAIN_SECONDS)

    def _note(self, session_id: str) -> None:
        if session_id not in self._waiting:
            self._waiting.add(session_id)
            self._heard.put_nowait(session_id)

    async def _follow_forever(self) -> None:
        while True:
            session_id = await self._heard.get()
            self._waiting.discard(session_id)
            try:
                await self._follow(session_id)
            except DatabaseUnavailable as error:
                log.warning("the database does not answer", detail=error.message)
                self._note(session_id)
                await asyncio.sleep(_AGAIN_SECONDS)

    async def _follow(self, session_id: str) -> None:
        busy = self._workers.is_busy(session_id)
        if not busy and session_id not in self._feeds.watched():
            return
        try:
            self._feeds.catch_up(await self._reader.get(session_id))
            if busy and (turn_id := await self._reader.cancelled_turn(session_id)):
                self._workers.heed(session_id, turn_id)
        except SessionNotFound:
            self._feeds.close(session_id)
            await self._workers.dismiss(session_id)
