"""Owns the traffic log, in SQLite. One thread writes; what is queued is committed as one."""

import asyncio
import queue
import sqlite3
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import structlog

from egress_proxy.policy import Decision, Effect
from egress_proxy.traffic import (
    Attempt,
    Ending,
    Filter,
    Kind,
    Owner,
    Record,
    TrafficLogUnavailable,
)

log = structlog.get_logger(__name__)

T = TypeVar("T")

RETENTION = timedelta(days=30)
MAX_RECORDS = 1_000_000
SWEEP_PAUSE = timedelta(minutes=10)
SWEEP_BATCH = 5000
_BATCH = 500
_MICROSECOND = timedelta(microseconds=1)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_SCHEMA = """
CREATE TABLE IF NOT EXISTS traffic (
  id INTEGER PRIMARY KEY AUTOINCREMENT, change INTEGER NOT NULL,
  container_id TEXT NOT NULL, project_id TEXT NOT NULL, session_id TEXT NOT NULL,
  revision INTEGER NOT NULL, kind TEXT NOT NULL, effect TEXT NOT NULL, rule TEXT NOT NULL,
  reason TEXT NOT NULL, protocol TEXT NOT NULL, host TEXT NOT NULL, port INTEGER NOT NULL,
  requested TEXT NOT NULL, dialled TEXT NOT NULL, method TEXT NOT NULL, path TEXT NOT NULL,
  query_type TEXT NOT NULL, status INTEGER NOT NULL DEFAULT 0, ending TEXT NOT NULL DEFAULT '',
  sent INTEGER NOT NULL DEFAULT 0, received INTEGER NOT NULL DEFAULT 0,
  created INTEGER NOT NULL, duration INTEGER
);
CREATE INDEX IF NOT EXISTS traffic_change ON traffic (change);
CREATE INDEX IF NOT EXISTS traffic_container ON traffic (container_id, id);
CREATE INDEX IF NOT EXISTS traffic_session ON traffic (session_id, id);
CREATE INDEX IF NOT EXISTS traffic_open ON traffic (id) WHERE duration IS NULL;
CREATE TABLE IF NOT EXISTS names (
  container_id TEXT NOT NULL, number INTEGER NOT NULL, name TEXT NOT NULL,
  PRIMARY KEY (container_id, number)
);
"""
_INSERT = """
INSERT INTO traffic (change, container_id, project_id, session_id, revision, kind, effect, rule,
  reason, protocol, host, port, requested, dialled, method, path, query_type, created)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
_END = """
UPDATE traffic SET change = ?, status = ?, ending = ?, sent = ?, received = ?,
  duration = max(0, ? - created) WHERE id = ? AND duration IS NULL
"""

Work = Callable[[sqlite3.Connection], Any]


class TrafficLog:
    """What went out and what was not let out. Use `opened`; belongs to one event loop."""

    def __init__(self, path: Path, loop: asyncio.AbstractEventLoop) -> None:
        self._path = path
        self._loop = loop
        self._queue: queue.SimpleQueue[tuple[Work, asyncio.Future[Any] | None] | None]
        self._queue = queue.SimpleQueue()
        self._change = 0
        self._changed = asyncio.Event()
        self._on_broken: Callable[[], None] = lambda: None

    @classmethod
    @asynccontextmanager
    async def opened(
        cls,
        path: Path,
        *,
        retention: timedelta = RETENTION,
        max_records: int = MAX_RECORDS,
    ) -> AsyncIterator["TrafficLog"]:
        """The log at `path`, made if missing. sqlite3.Error where it cannot be."""
        made = cls(path, asyncio.get_running_loop())
        connection = await asyncio.to_thread(made._open)
        thread = threading.Thread(target=made._write, args=(connection,), name="traffic-log")
        thread.start()
        try:
            async with asyncio.TaskGroup() as tasks:
                sweeper = tasks.create_task(made._sweep_for_ever(retention, max_records))
                try:
                    yield made
                finally:
                    sweeper.cancel()
        finally:
            made._queue.put(None)
            await asyncio.to_thread(thread.join)

    def when_broken(self, act: Callable[[], None]) -> None:
        """`act` is called when a write has failed."""
        self._on_broken = act

    async def begin(self, attempt: Attempt) -> int:
        """Records an attempt, and returns its number once that is committed."""
        created = _now()
        return await self.write(lambda connection: self._insert(connection, attempt, created))

    def end(self, number: int, ending: Ending) -> None:
        """Records how an attempt went, soon."""
        ended = _now()
        self._queue.put((lambda connection: self._end(connection, number, ending, ended), None))

    async def note(self, attempt: Attempt, ending: Ending) -> None:
        """Records an attempt that is over."""
        created = _now()

        def work(connection: sqlite3.Connection) -> None:
            self._end(connection, self._insert(connection, attempt, created), ending, created)

        await self.write(work)

    async def write(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Does `work` in a transaction, with whatever else waits, and returns when it is
        committed. Raises `TrafficLogUnavailable`."""
        future: asyncio.Future[T] = self._loop.create_future()
        self._queue.put((work, future))
        return await future

    async def page(
        self, wanted: Filter, after: int, limit: int, *, by_change: bool = False
    ) -> Sequence[Record]:
        """Records behind record (or change) `after`, oldest first."""
        order = "change" if by_change else "id"
        clauses, values = _where(wanted)
        query = f"SELECT * FROM traffic WHERE {order} > ?{clauses} ORDER BY {order} LIMIT ?"

        def work() -> list[Record]:
            connection = sqlite3.connect(f"file:{self._path}?mode=ro", uri=True, timeout=5)
            try:
                connection.row_factory = sqlite3.Row
                rows = connection.execute(query, (after, *values, limit))
                return [_record(row) for row in rows]
            finally:
                connection.close()

        return await asyncio.to_thread(work)

    @property
    def last_change(self) -> int:
        """The newest change."""
        return self._change

    def next_change(self) -> asyncio.Event:
        """Set at the next change. To be taken before looking at what is there."""
        return self._changed

    def _open(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
        connection.execute("PRAGMA journal_mode=WAL").close()
        connection.execute("PRAGMA synchronous=NORMAL").close()
        connection.executescript(_SCHEMA).close()
        found = connection.execute("SELECT coalesce(max(change), 0) FROM traffic").fetchone()
        self._change = found[0]
        # What an earlier process left open is over with it.
        for row in connection.execute("SELECT id FROM traffic WHERE duration IS NULL").fetchall():
            self._end(connection, row[0], Ending("proxy_stopped"), _now())
        return connection

    def _write(self, connection: sqlite3.Connection) -> None:
        late: list[tuple[Work, asyncio.Future[Any] | None]] = []
        while True:
            first = self._queue.get()
            batch = [*late] if first is None else [*late, first]
            stopping = first is None
            while not stopping and len(batch) < _BATCH and not self._queue.empty():
                each = self._queue.get()
                if each is None:
                    stopping = True
                else:
                    batch.append(each)
            late = self._commit(connection, batch)
            if stopping:
                connection.close()
                return

    def _commit(
        self,
        connection: sqlite3.Connection,
        batch: list[tuple[Work, asyncio.Future[Any] | None]],
    ) -> list[tuple[Work, asyncio.Future[Any] | None]]:
        """Commits a batch. Returns what has to be tried again: endings that nobody waits for."""
        before = self._change
        answers: list[tuple[asyncio.Future[Any], Any]] = []
        try:
            connection.execute("BEGIN IMMEDIATE")
            for work, future in batch:
                answer = work(connection)
                if future is not None:
                    answers.append((future, answer))
            connection.execute("COMMIT")
        except Exception as error:
            self._change = before
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            self._call(self._failed, [future for _, future in batch if future], error)
            return [each for each in batch if each[1] is None][-10_000:]
        self._call(self._done, answers)
        return []

    def _call(self, act: Callable[..., None], *arguments: object) -> None:
        try:
            self._loop.call_soon_threadsafe(act, *arguments)
        except RuntimeError:
            pass  # the loop is gone, and with it all who waited

    def _done(self, answers: list[tuple[asyncio.Future[Any], Any]]) -> None:
        for future, answer in answers:
            if not future.done():
                future.set_result(answer)
        self._changed.set()
        self._changed = asyncio.Event()

    def _failed(self, futures: list[asyncio.Future[Any]], error: Exception) -> None:
        log.error("traffic log not written", problem=str(error))
        for future in futures:
            if not future.done():
                future.set_exception(
                    TrafficLogUnavailable(f"the traffic log cannot be written: {error}")
                )
        self._on_broken()

    def _insert(self, connection: sqlite3.Connection, attempt: Attempt, created: int) -> int:
        self._change += 1
        owner, decision = attempt.owner, attempt.decision
        cursor = connection.execute(
            _INSERT,
            (
                self._change, owner.container_id, owner.project_id, owner.session_id,
                owner.policy_revision, attempt.kind.value, decision.effect.value, decision.rule,
                decision.reason, attempt.protocol, attempt.host, attempt.port,
                attempt.requested_address, attempt.dialled_address, attempt.method, attempt.path,
                attempt.query_type, created,
            ),
        )  # fmt: skip
        assert cursor.lastrowid is not None
        return cursor.lastrowid

    def _end(self, connection: sqlite3.Connection, number: int, ending: Ending, ended: int) -> None:
        self._change += 1
        connection.execute(
            _END,
            (
                self._change, ending.status, ending.how, ending.sent_bytes, ending.received_bytes,
                ended, number,
            ),
        )  # fmt: skip

    async def _sweep_for_ever(self, retention: timedelta, max_records: int) -> None:
        while True:
            more = False
            try:
                more = await self.write(lambda each: _sweep(each, retention, max_records))
            except TrafficLogUnavailable:
                pass  # said where it failed
            await asyncio.sleep(0.05 if more else SWEEP_PAUSE.total_seconds())


def _sweep(connection: sqlite3.Connection, retention: timedelta, max_records: int) -> bool:
    """Drops some records that are too old or too many; whether there are more."""
    oldest = _now() - retention // _MICROSECOND
    dropped = connection.execute(
        "DELETE FROM traffic WHERE id IN (SELECT id FROM traffic WHERE duration IS NOT NULL"
        " AND (created < ? OR id <= (SELECT coalesce(max(id), 0) FROM traffic) - ?)"
        " ORDER BY id LIMIT ?)",
        (oldest, max_records, SWEEP_BATCH),
    ).rowcount
    return dropped == SWEEP_BATCH


def _where(wanted: Filter) -> tuple[str, list[object]]:
    clauses: list[str] = []
    values: list[object] = []
    for column in ("container_id", "session_id", "project_id"):
        if getattr(wanted, column):
            clauses.append(f" AND {column} = ?")
            values.append(getattr(wanted, column))
    for column, choices in (("effect", wanted.effects), ("kind", wanted.kinds)):
        if choices:
            clauses.append(f" AND {column} IN ({', '.join('?' for _ in choices)})")
            values.extend(choice.value for choice in choices)
    return "".join(clauses), values


def _record(row: sqlite3.Row) -> Record:
    attempt = Attempt(
        Owner(row["container_id"], row["project_id"], row["session_id"], row["revision"]),
        Kind(row["kind"]),
        Decision(Effect(row["effect"]), row["rule"], row["reason"]),
        row["protocol"],
        row["host"],
        row["port"],
        row["requested"],
        row["dialled"],
        row["method"],
        row["path"],
        row["query_type"],
    )
    return Record(
        row["id"],
        row["change"],
        attempt,
        Ending(row["ending"], row["sent"], row["received"], row["status"]),
        _EPOCH + row["created"] * _MICROSECOND,
        None if row["duration"] is None else row["duration"] * _MICROSECOND,
    )


def _now() -> int:
    return time.time_ns() // 1000
