"""Owns one SQLite file and the one thread that uses it; knows no tables of its own."""

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self, TypeVar

import sqlalchemy as sa

T = TypeVar("T")


class Sqlite:
    """A small database for one event loop. Use `opened`.

    What is committed survives the death of the process; the last moments before a power cut may
    be lost.
    """

    def __init__(self, engine: sa.Engine, executor: ThreadPoolExecutor) -> None:
        self._engine = engine
        self._executor = executor

    @classmethod
    @asynccontextmanager
    async def opened(cls, path: Path, metadata: sa.MetaData) -> AsyncIterator[Self]:
        """Opens the file and makes the tables that are missing. SQLAlchemyError where it cannot."""
        executor = ThreadPoolExecutor(1, thread_name_prefix="sqlite")
        database = cls(_engine(path), executor)
        try:
            await database._in_thread(lambda: metadata.create_all(database._engine))
            yield database
        finally:
            await database._in_thread(database._engine.dispose)
            executor.shutdown()

    async def run(self, operation: Callable[[sa.Connection], T]) -> T:
        """Runs an operation in a transaction of its own; returns once that is committed.

        A caller that is cancelled does not undo what it asked for.
        """

        def work() -> T:
            with self._engine.begin() as connection:
                return operation(connection)

        return await self._in_thread(work)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)


def _engine(path: Path) -> sa.Engine:
    engine = sa.create_engine(
        f"sqlite:///{path}",
        poolclass=sa.pool.StaticPool,
        connect_args={"check_same_thread": False, "timeout": 10},
    )

    @sa.event.listens_for(engine, "connect")
    def configure(connection: Any, _record: object) -> None:
        connection.execute("PRAGMA journal_mode=WAL").close()
        connection.execute("PRAGMA synchronous=NORMAL").close()

    return engine
