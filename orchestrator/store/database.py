"""Owns the connections: one thread that writes, a few that read. Knows no tables.

What is queued for the writer while it commits goes into its next transaction together, so that
many sessions share one flush to disk. A transaction that fails is taken apart: each of its
operations is tried again alone, and only the one at fault fails.
"""

import asyncio
import queue
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from sqlalchemy import URL, Connection
from sqlalchemy.exc import DBAPIError, IntegrityError, OperationalError, SQLAlchemyError

from orchestrator.errors import DatabaseUnavailable
from orchestrator.store.engines import is_lost, open_engines, parse_url
from orchestrator.store.migrations import migrate

T = TypeVar("T")
Operation = Callable[[Connection], T]

_READERS = 3
_LARGEST_BATCH = 256
_TRIES = 5
"""How often an operation is tried that another process was in the way of."""
_COLLISIONS = {"40001", "40P01", "23505"}
"""What PostgreSQL calls transactions that it undid because of another one, or a row of it."""


@dataclass(slots=True)
class _Write(Generic[T]):
    """An operation on its way; it may run twice, so it touches nothing but the connection."""

    operation: Operation[T]
    committed: Callable[[T], None] | None
    done: asyncio.Future[T]
    about: str
    result: T | None = None
    error: BaseException | None = None


class Database:
    """The database of one orchestrator, or of several. An async context manager, entered once.

    `where` is the path of a SQLite file, or a URL; `name` is what the others know this process
    by. Errors: `InvalidField` for a URL that cannot be used; on entry `OSError` when the folder
    cannot be written, `DatabaseUnavailable`.
    """

    def __init__(self, where: Path | str, *, name: str = "") -> None:
        self.url = parse_url(where) if isinstance(where, str) else _file(where)
        self._name = name
        self._queue: queue.SimpleQueue[_Write[Any] | None] = queue.SimpleQueue()
        self._readers = ThreadPoolExecutor(_READERS, thread_name_prefix="store-read")
        self._read_connections: list[Connection] = []
        self._reader = threading.local()

    @property
    def is_shared(self) -> bool:
        """Whether other orchestrators may have the same database."""
        return self._engines.shared

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
        for connection in (*self._read_connections, self._writer):
            with suppress(SQLAlchemyError):
                connection.close()
        self._engines.dispose()

    def write(
        self,
        operation: Operation[T],
        committed: Callable[[T], None] | None = None,
        *,
        about: str = "",
    ) -> asyncio.Future[T]:
        """Run `operation` in a transaction and return its result once that is on disk.

        The operation runs in the writer's thread, perhaps more than once, and must touch nothing
        but its connection. `committed` is called in the event loop, in the order of commits and
        before anybody is woken. A caller that is cancelled does not undo what it asked for. The
        session that it is `about` is told to the other orchestrators of a shared database.

        Errors: `DatabaseUnavailable` when the server was lost on the way, so that it is not known
        whether the write happened.
        """
        done: asyncio.Future[T] = self._loop.create_future()
        self._queue.put(_Write(operation, committed, done, about))
        return done

    async def read(self, operation: Operation[T]) -> T:
        """Run `operation` on a snapshot of what is committed; it must not write.

        Errors: `DatabaseUnavailable`.
        """
        return await self._loop.run_in_executor(self._readers, self._read, operation)

    def _open(self) -> None:
        self._engines = open_engines(self.url)
        try:
            migrate(self._engines.writing)
            self._writer = self._engines.writing.connect()
        except OperationalError as error:
            shown = self.url.render_as_string(hide_password=True)
            raise DatabaseUnavailable(f"{shown} cannot be used: {error.orig}") from error

    def _read(self, operation: Operation[T], tries: int = 2) -> T:
        connection: Connection | None = getattr(self._reader, "connection", None)
        try:
            if connection is None:
                connection = self._reader.connection = self._engines.reading.connect()
                self._read_connections.append(connection)
            with connection.begin():
                return operation(connection)
        except DBAPIError as error:
            if connection is not None and not is_lost(connection):
                raise
            if connection is not None:
                _give_up(connection)
            if tries > 1:
                return self._read(operation, tries - 1)
            raise DatabaseUnavailable(f"the database is out of reach: {error.orig}") from error

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

    def _commit(self, batch: list[_Write[Any]], tries: int = _TRIES) -> None:
        committing = False
        try:
            with self._writer.begin():
                for write in batch:
                    write.result = write.operation(self._writer)
                if self._engines.shared:
                    about = dict.fromkeys(write.about for write in batch if write.about)
                    self._engines.tell(self._writer, self._name, list(about))
                committing = True
        except BaseException as error:
            if is_lost(self._writer):
                _give_up(self._writer)
                if not committing and tries == _TRIES:
                    self._commit(batch, tries - 1)
                    return
                for write in batch:
                    write.error = DatabaseUnavailable(f"the database is out of reach: {error}")
            elif len(batch) > 1:
                for write in batch:
                    self._commit([write])
            elif tries > 1 and _in_the_way(error) and self._engines.shared:
                self._commit(batch, tries - 1)
            else:
                batch[0].error = error


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


def _give_up(connection: Connection) -> None:
    """Forget a connection to a server that is gone: the next transaction opens another one."""
    if not connection.invalidated:
        with suppress(SQLAlchemyError):
            connection.invalidate()


def _in_the_way(error: BaseException) -> bool:
    """Whether another process's transaction came first, so that trying again helps."""
    if isinstance(error, IntegrityError):
        return True
    cause = error.orig if isinstance(error, DBAPIError) else error
    return getattr(cause, "sqlstate", None) in _COLLISIONS


def _file(path: Path) -> URL:
    return URL.create("sqlite", database=str(path))
