"""Owns what outlives the runtime's process: containers and executions, in SQLite.

Executions are written behind: each change is first a note in the journal, which costs no
transaction, and reaches the database with others a moment later. Whatever the journal still holds
when a process starts is replayed.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal, TypeVar

import sqlalchemy as sa
import structlog

from container_runtime.codec import (
    dump_container,
    dump_progress,
    dump_request,
    load_container,
    load_execution,
)
from container_runtime.errors import StoreUnreadable
from container_runtime.journal import Journal
from container_runtime.records import ContainerRecord, ExecutionRecord

log = structlog.get_logger(__name__)

T = TypeVar("T")

SCHEMA_VERSION = 1
"""Written into the database; another release's is refused rather than guessed at."""

BATCH_DELAY = 0.05
"""Seconds that changes are gathered before they are committed together."""
RETRY_DELAY = 1.0
"""Seconds after which a failed commit is tried again."""

_metadata = sa.MetaData()

_containers = sa.Table(
    "containers",
    _metadata,
    sa.Column("id", sa.String, primary_key=True),
    sa.Column("record", sa.Text, nullable=False),
)

_executions = sa.Table(
    "executions",
    _metadata,
    sa.Column("id", sa.String, primary_key=True),
    sa.Column("container_id", sa.String, nullable=False),
    sa.Column("number", sa.Integer, nullable=False),
    sa.Column("running", sa.Boolean, nullable=False),
    sa.Column("created", sa.Float, nullable=False),
    sa.Column("request", sa.Text, nullable=False),
    sa.Column("progress", sa.Text, nullable=False),
    sa.Index("executions_of_container", "container_id", "number"),
    sa.Index("executions_running", "running", sqlite_where=sa.text("running")),
)

_insert = sa.insert(_executions).prefix_with("OR REPLACE")
_update = (
    sa.update(_executions)
    .where(_executions.c.id == sa.bindparam("key"))
    .values(progress=sa.bindparam("new_progress"), running=sa.bindparam("new_running"))
)
_drop = sa.delete(_executions).where(_executions.c.id == sa.bindparam("key"))

Verb = Literal["add", "end", "drop"]
Change = tuple[str, str, tuple[str, ...]]
"""A verb, an execution's id, and what the verb needs; no part holds a tab or a line break."""
Values = dict[str, Any]


class Store:
    """The runtime's memory. Methods belong to one event loop; SQLite is used in one thread."""

    def __init__(self, engine: sa.Engine, journal: Journal, executor: ThreadPoolExecutor) -> None:
        """Use `opened`."""
        self._engine = engine
        self._journal = journal
        self._executor = executor
        self._pending: list[Change] = []
        self._wanted = asyncio.Event()
        self._turn = asyncio.Lock()
        self._left: int | None = None
        self._number = 0
        self._notes = 0

    @classmethod
    @asynccontextmanager
    async def opened(cls, directory: Path) -> AsyncIterator["Store"]:
        """A store on `directory`, which one process at a time may use."""
        executor = ThreadPoolExecutor(1, thread_name_prefix="store")
        engine = _engine(directory / "runtime.db")
        journal = Journal(directory)
        store = cls(engine, journal, executor)
        try:
            await store._recover()
            async with asyncio.TaskGroup() as tasks:
                writer = tasks.create_task(store._write_behind())
                try:
                    yield store
                finally:
                    writer.cancel()
                    await store.flush()
        finally:
            await store._in_thread(engine.dispose)
            executor.shutdown()
            journal.close()

    # Containers: rare, so each change is a transaction that the caller waits for.

    async def put_container(self, record: ContainerRecord) -> None:
        """Remember a container as it is now."""
        row = {"id": record.id, "record": dump_container(record)}
        statement = sa.insert(_containers).prefix_with("OR REPLACE")
        await self._in_thread(lambda: self._commit([(statement, [row])]))

    async def delete_container(self, container_id: str) -> None:
        """Forget a container and its executions."""
        await self.flush()
        executions = sa.delete(_executions).where(_executions.c.container_id == container_id)
        container = sa.delete(_containers).where(_containers.c.id == container_id)
        await self._in_thread(lambda: self._commit([(executions, [{}]), (container, [{}])]))

    async def containers(self) -> list[ContainerRecord]:
        """All that are remembered."""
        rows = await self._in_thread(lambda: self._fetch(sa.select(_containers.c.record)))
        return [load_container(row.record) for row in rows]

    async def in_transaction(self, work: Callable[[sa.Connection], T]) -> T:
        """Do other modules' work, on tables of their own, in one transaction."""

        def transact() -> T:
            with self._engine.begin() as connection:
                return work(connection)

        return await self._in_thread(transact)

    # Executions

    def add_execution(self, record: ExecutionRecord) -> None:
        """Remember that a command is about to start. Raises `HostDiskFull`."""
        self._number += 1
        container_id, request = record.request.container_id, dump_request(record.request)
        created = repr(record.created.timestamp())
        self._change("add", record.id, container_id, str(self._number), created, request)

    def end_execution(self, record: ExecutionRecord) -> None:
        """Remember how a command ended. Raises `HostDiskFull`."""
        self._change("end", record.id, dump_progress(record))

    def drop_execution(self, execution_id: str) -> None:
        """Forget a command that was never accepted. Raises `HostDiskFull`."""
        self._change("drop", execution_id)

    async def execution(self, execution_id: str) -> ExecutionRecord | None:
        """One execution, `None` if it is not remembered."""
        query = sa.select(_executions).where(_executions.c.id == execution_id)
        found = await self._executions(query)
        return found[0][1] if found else None

    async def executions(
        self, container_id: str, after: int, limit: int
    ) -> list[tuple[int, ExecutionRecord]]:
        """A container's executions in the order in which they came, numbered, beginning behind
        number `after`."""
        query = (
            sa.select(_executions)
            .where(_executions.c.container_id == container_id, _executions.c.number > after)
            .order_by(_executions.c.number)
            .limit(limit)
        )
        return await self._executions(query)

    async def execution_ids(self, container_id: str) -> list[str]:
        """The ids of all of a container's executions."""
        await self.flush()
        query = sa.select(_executions.c.id).where(_executions.c.container_id == container_id)
        return [row.id for row in await self._in_thread(lambda: self._fetch(query))]

    async def running(self, container_id: str) -> list[ExecutionRecord]:
        """A container's executions that are not over."""
        query = sa.select(_executions).where(
            _executions.c.running, _executions.c.container_id == container_id
        )
        return [record for _, record in await self._executions(query)]

    async def _executions(self, query: sa.Select[Any]) -> list[tuple[int, ExecutionRecord]]:
        await self.flush()
        rows = await self._in_thread(lambda: self._fetch(query))
        return [
            (row.number, load_execution(row.created, row.request, row.progress)) for row in rows
        ]

    # Writing behind

    def _change(self, verb: Verb, execution_id: str, *values: str) -> None:
        self._notes += 1
        self._journal.append("\t".join((f"{self._notes:020d}", verb, execution_id, *values)))
        self._pending.append((verb, execution_id, values))
        self._wanted.set()

    async def flush(self) -> None:
        """Bring every change into the database. SQLAlchemyError when it does not take them; they
        are kept and tried again."""
        async with self._turn:
            if not self._pending:
                return
            changes, self._pending = self._pending, []
            if self._left is None:
                self._left = self._journal.turn()
            try:
                await self._in_thread(lambda: self._apply(changes))
            except BaseException:
                self._pending = changes + self._pending
                raise
            self._journal.empty(self._left)
            self._left = None

    async def _write_behind(self) -> None:
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            await asyncio.sleep(BATCH_DELAY)
            try:
                await self.flush()
            except sa.exc.SQLAlchemyError:
                log.exception("changes not committed", changes=len(self._pending))
                await asyncio.sleep(RETRY_DELAY)
                self._wanted.set()

    async def _recover(self) -> None:
        changes = [_change_in(note) for note in sorted(self._journal.left_over())]

        def prepare() -> int:
            self._check_schema()
            self._apply(changes)
            with self._engine.connect() as connection:
                last = connection.scalar(sa.select(sa.func.max(_executions.c.number)))
            return last or 0

        self._number = await self._in_thread(prepare)
        for number in (0, 1):
            self._journal.empty(number)

    # In the store's thread

    def _check_schema(self) -> None:
        with self._engine.begin() as connection:
            found = connection.exec_driver_sql("PRAGMA user_version").scalar_one()
            if found not in (0, SCHEMA_VERSION):
                raise StoreUnreadable(
                    f"{self._engine.url.database} was written by another release "
                    f"(schema {found}, this one has {SCHEMA_VERSION})"
                )
            _metadata.create_all(connection)
            connection.exec_driver_sql(f"PRAGMA user_version = {SCHEMA_VERSION}")

    def _apply(self, changes: Sequence[Change]) -> None:
        added, ended, dropped = _net(changes)
        self._commit([(_drop, dropped), (_insert, added), (_update, ended)])

    def _commit(self, work: Sequence[tuple[sa.Executable, Sequence[Values]]]) -> None:
        with self._engine.begin() as connection:
            for statement, rows in work:
                if rows:
                    connection.execute(statement, list(rows))

    def _fetch(self, query: sa.Select[Any]) -> Sequence[sa.Row[Any]]:
        with self._engine.connect() as connection:
            return connection.execute(query).all()

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)


def _net(changes: Sequence[Change]) -> tuple[list[Values], list[Values], list[Values]]:
    """What changes come to: rows to add, to end and, before both, to drop."""
    added: dict[str, Values] = {}
    ended: dict[str, Values] = {}
    dropped: dict[str, Values] = {}
    for verb, key, values in changes:
        if verb == "add":
            added[key] = _row(key, values)
        elif verb == "drop":
            added.pop(key, None)
            ended.pop(key, None)
            dropped[key] = {"key": key}
        elif key in added:
            added[key] |= {"progress": values[0], "running": False}
        else:
            ended[key] = {"key": key, "new_progress": values[0], "new_running": False}
    return list(added.values()), list(ended.values()), list(dropped.values())


def _row(key: str, values: tuple[str, ...]) -> Values:
    container_id, number, created, request = values
    return {
        "id": key,
        "container_id": container_id,
        "number": int(number),
        "running": True,
        "created": float(created),
        "request": request,
        "progress": "",
    }


def _change_in(note: str) -> Change:
    _, verb, key, *values = note.split("\t")
    return verb, key, tuple(values)


def _engine(path: Path) -> sa.Engine:
    engine = sa.create_engine(
        f"sqlite:///{path}",
        poolclass=sa.pool.StaticPool,
        connect_args={"check_same_thread": False},
        hide_parameters=True,  # commands must not get into logs
    )

    @sa.event.listens_for(engine, "connect")
    def configure(connection: object, _record: object) -> None:
        cursor = connection.cursor()  # type: ignore[attr-defined]
        cursor.execute("PRAGMA journal_mode=WAL")
        cursor.execute("PRAGMA synchronous=NORMAL")
        cursor.close()

    return engine
