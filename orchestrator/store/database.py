"""Owns the connections: one thread that writes, a few that read. Knows no tables.

What is queued for the writer while it commits goes into its next transaction together, so that
many sessions share one flush to disk. A transaction that fails is taken apart: each of its
operations is tried again alone, and only the one at fault fails.
"""

import asyncio
import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from sqlalchemy import Connection, Engine, NullPool, create_engine, event

from orchestrator.store.migrations import migrate

T = TypeVar("T")
Operation = Callable[[Connection], T]

_READERS = 3
_LARGEST_BATCH = 256


@dataclass(slots=True)
class _Write(Generic[T]):
    """An operation on its way; it may run twice, so it touches nothing but the connection."""

    operation: Operation[T]
    committed: Callable[[T], None] | None
    done: asyncio.Future[T]
    result: T | None = None
    error: BaseException | None = None


class Database:
    """The database of one orchestrator. An async context manager; only one process may have it.

    Errors on entry: `OSError` when the folder cannot be written, or another process has it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._queue: queue.SimpleQueue[_Write[Any] | None] = queue.SimpleQueue()
        self._readers = ThreadPoolExecutor(_READERS, thread_name_prefix="store-read")
        self._read_connections: list[Connection] = []
        self._reader = threading.local()

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        await asyncio.to_thread(self._open)
        self._thread = threading.Thread(target=self._write_forever, name="store-write")
        self._thread.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._queue.put(None)
        await asyncio.to_thread(self._thread.join)
        # Whoever waits for a write is woken by callbacks that the thread left in the loop.
        await asyncio.sleep(0)
        self._readers.shutdown(wait=True)
        for connection in self._read_connections:
            connection.close()
        self._writer.close()
        self._engine.dispose()
        self._read_engine.dispose()

    def write(
        self, operation: Operation[T], committed: Callable[[T], None] | None = None
    ) -> asyncio.Future[T]:
        """Run `operation` in a transaction and return its result once that is on disk.

        The operation runs in the writer's thread, perhaps more than once, and must touch nothing
        but its connection. `committed` is called in the event loop, in the order of commits and
        before anybody is woken. A caller that is cancelled does not undo what it asked for.
        """
        done: asyncio.Future[T] = self._loop.create_future()
        self._queue.put(_Write(operation, committed, done))
        return done

    async def read(self, operation: Operation[T]) -> T:
        """Run `operation` on a snapshot of what is committed; it must not write."""
        return await self._loop.run_in_executor(self._readers, self._read, operation)

    def _open(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._engine = _engine(self._path, begin="BEGIN IMMEDIATE")
        self._read_engine = _engine(self._path, begin="BEGIN")
        migrate(self._engine)
        self._writer = self._engine.connect()

    def _read(self, operation: Operation[T]) -> T:
        connection: Connection | None = getattr(self._reader, "connection", None)
        if connection is None:
            connection = self._reader.connection = self._read_engine.connect()
            self._read_connections.append(connection)
        with connection.begin():
            return operation(connection)

    def _write_forever(self) -> None:
        while (first := self._queue.get()) is not None:
            batch, last = self._gather(first)
            self._commit(batch)
            self._loop.call_soon_threadsafe(_wake, batch)
            if last:
                return

    def _gather(self, first: _Write[Any]) -> tuple[list[_Write[Any]], bool]:
        batch = [first]
        while len(batch) < _LARGEST_BATCH:
            try:
                following = self._queue.get_nowait()
            except queue.Empty:
                break
            if following is None:
                return batch, True
            batch.append(following)
        return batch, False

    def _commit(self, batch: list[_Write[Any]]) -> None:
        try:
            with self._writer.begin():
                for write in batch:
                    write.result = write.operation(self._writer)
        except BaseException as error:
            if len(batch) == 1:
                batch[0].error = error
                return
            for write in batch:
                self._commit([write])


def _wake(batch: list[_Write[Any]]) -> None:
    for write in batch:
        if write.error is None and write.committed is not None:
            write.committed(write.result)
    for write in batch:
        if write.done.done():
            continue
        if write.error is not None:
            write.done.set_exception(write.error)
        else:
            write.done.set_result(write.result)


def _engine(path: Path, *, begin: str) -> Engine:
    engine = create_engine(
        f"sqlite:///{path}",
        poolclass=NullPool,
        connect_args={"check_same_thread": False, "timeout": 30},
    )

    # The driver's own transactions begin too late and as readers: they are turned off and begun
    # by hand.
    @event.listens_for(engine, "connect")
    def prepare(connection: Any, _: object) -> None:
        connection.isolation_level = None
        with _cursor(connection) as cursor:
            cursor.execute("PRAGMA journal_mode=WAL")
            cursor.execute("PRAGMA synchronous=FULL")
            cursor.execute("PRAGMA foreign_keys=ON")

    @event.listens_for(engine, "begin")
    def start(connection: Connection) -> None:
        connection.exec_driver_sql(begin)

    return engine


@contextmanager
def _cursor(connection: Any) -> Iterator[Any]:
    cursor = connection.cursor()
    try:
        yield cursor
    finally:
        cursor.close()
