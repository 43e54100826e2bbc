"""Owns the memory of decisions, in SQLite; decides nothing."""

import dataclasses
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Self

import sqlalchemy as sa

from reviewer.decisions import Follows, Mode
from reviewer.records import DecisionRecord
from reviewer.rules.classify import Outcome
from workroom.sqlite import Sqlite

_metadata = sa.MetaData()

_decisions = sa.Table(
    "decisions",
    _metadata,
    sa.Column("number", sa.Integer, primary_key=True),
    sa.Column("id", sa.String, nullable=False, unique=True),
    sa.Column("project_id", sa.String, nullable=False),
    sa.Column("request_id", sa.String, nullable=False),
    sa.Column("session_id", sa.String, nullable=False),
    sa.Column("turn_id", sa.String, nullable=False),
    sa.Column("item_id", sa.String, nullable=False),
    sa.Column("action_digest", sa.String, nullable=False),
    sa.Column("mode", sa.String, nullable=False),
    sa.Column("verdict", sa.String, nullable=False),
    sa.Column("outcome", sa.String, nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("rule_id", sa.String, nullable=False),
    sa.Column("matched_command", sa.Text, nullable=False),
    sa.Column("create_time", sa.BigInteger, nullable=False),
    sa.UniqueConstraint("project_id", "request_id"),
    sa.Index("decisions_of_session", "session_id", "number"),
    sa.Index("decisions_by_time", "create_time"),
    sqlite_autoincrement=True,
)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_insert = sa.insert(_decisions).prefix_with("OR IGNORE")


class DecisionStore:
    """Decisions, kept until their retention ends."""

    def __init__(self, database: Sqlite) -> None:
        self._database = database

    @classmethod
    @asynccontextmanager
    async def opened(cls, path: Path) -> AsyncIterator[Self]:
        """A store on the file `path`, made if missing."""
        async with Sqlite.opened(path, _metadata) as database:
            yield cls(database)

    async def by_request(self, project_id: str, request_id: str) -> DecisionRecord | None:
        """The decision that a request got, if it is known."""
        query = _of_request(project_id, request_id)
        row = await self._database.run(lambda connection: connection.execute(query).first())
        return _record(row) if row is not None else None

    async def add(self, record: DecisionRecord) -> DecisionRecord:
        """Keeps a decision and returns it; where the request already has one, that one."""
        query = _of_request(record.project_id, record.request_id)

        def operation(connection: sa.Connection) -> sa.Row[Any]:
            connection.execute(_insert, _values(record))
            return connection.execute(query).one()

        return _record(await self._database.run(operation))

    async def get(self, decision_id: str) -> DecisionRecord | None:
        """One decision, if it is known."""
        query = sa.select(_decisions).where(_decisions.c.id == decision_id)
        row = await self._database.run(lambda connection: connection.execute(query).first())
        return _record(row) if row is not None else None

    async def page(
        self, session_id: str, before: int | None, limit: int
    ) -> Sequence[tuple[int, DecisionRecord]]:
        """Decisions with their numbers, newest first, of one session or (empty) of all."""
        query = sa.select(_decisions).order_by(_decisions.c.number.desc()).limit(limit)
        if session_id:
            query = query.where(_decisions.c.session_id == session_id)
        if before is not None:
            query = query.where(_decisions.c.number < before)
        rows = await self._database.run(lambda connection: connection.execute(query).all())
        return [(row.number, _record(row)) for row in rows]

    async def drop_before(self, time: datetime) -> int:
        """Forgets decisions made before `time`, and says how many."""
        old = sa.delete(_decisions).where(_decisions.c.create_time < _micros(time))
        return await self._database.run(lambda connection: connection.execute(old).rowcount)


def _of_request(project_id: str, request_id: str) -> sa.Select[Any]:
    return sa.select(_decisions).where(
        _decisions.c.project_id == project_id, _decisions.c.request_id == request_id
    )


def _values(record: DecisionRecord) -> dict[str, Any]:
    values = {each.name: getattr(record, each.name) for each in dataclasses.fields(record)}
    return values | {"create_time": _micros(record.create_time)}


def _record(row: sa.Row[Any]) -> DecisionRecord:
    values = dict(row._mapping)
    del values["number"]
    values["mode"] = Mode(row.mode)
    values["verdict"] = Outcome(row.verdict)
    values["outcome"] = Follows(row.outcome)
    values["create_time"] = _EPOCH + row.create_time * _MICROSECOND
    return DecisionRecord(**values)


def _micros(time: datetime) -> int:
    return (time - _EPOCH) // _MICROSECOND
