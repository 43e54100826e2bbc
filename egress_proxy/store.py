"""Owns the memory of attachments, in SQLite, so that a restart remembers them."""

import dataclasses
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Self

import sqlalchemy as sa

from egress_proxy.attachments import Attachment, Wanted
from egress_proxy.capture.namespaces import Process
from egress_proxy.policy import Policy
from egress_proxy.policy_texts import PolicyTexts, RuleTexts, parse_policy, policy_texts
from workroom.sqlite import Sqlite

_metadata = sa.MetaData()
_attachments = sa.Table(
    "captures",
    _metadata,
    sa.Column("number", sa.Integer, primary_key=True),
    sa.Column("container_id", sa.String, nullable=False, unique=True),
    sa.Column("project_id", sa.String, nullable=False),
    sa.Column("session_id", sa.String, nullable=False),
    sa.Column("policy", sa.Text, nullable=False),
    sa.Column("bound", sa.Text),
    sa.Column("pid", sa.BigInteger),
    sa.Column("start_ticks", sa.BigInteger),
    sa.Column("revision", sa.BigInteger, nullable=False),
    sa.Column("create_time", sa.BigInteger, nullable=False),
    sa.Column("update_time", sa.BigInteger, nullable=False),
    sqlite_autoincrement=True,
)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class AttachmentStore:
    """Attachments, each numbered when it is made."""

    def __init__(self, database: Sqlite) -> None:
        self._database = database

    @classmethod
    @asynccontextmanager
    async def opened(cls, path: Path) -> AsyncIterator[Self]:
        """A store on the file `path`, made if missing."""
        async with Sqlite.opened(path, _metadata) as database:
            yield cls(database)

    async def get(self, container_id: str) -> Attachment | None:
        """A container's attachment, if it has one."""
        query = sa.select(_attachments).where(_attachments.c.container_id == container_id)
        row = await self._database.run(lambda connection: connection.execute(query).first())
        return _attachment(row) if row is not None else None

    async def put(self, attachment: Attachment) -> None:
        """Keeps an attachment, in place of the one that the container has."""
        values = _values(attachment)
        update = (
            sa.update(_attachments)
            .where(_attachments.c.container_id == attachment.container_id)
            .values(values)
        )

        def operation(connection: sa.Connection) -> None:
            if not connection.execute(update).rowcount:
                connection.execute(sa.insert(_attachments), values)

        await self._database.run(operation)

    async def drop(self, container_id: str) -> bool:
        """Forgets a container's attachment, and says whether there was one."""
        drop = sa.delete(_attachments).where(_attachments.c.container_id == container_id)
        return await self._database.run(lambda connection: connection.execute(drop).rowcount > 0)

    async def page(self, after: int | None, limit: int) -> Sequence[tuple[int, Attachment]]:
        """Attachments with their numbers, oldest first."""
        query = sa.select(_attachments).order_by(_attachments.c.number).limit(limit)
        if after is not None:
            query = query.where(_attachments.c.number > after)
        rows = await self._database.run(lambda connection: connection.execute(query).all())
        return [(row.number, _attachment(row)) for row in rows]


def _values(attachment: Attachment) -> dict[str, Any]:
    wanted = attachment.wanted
    return {
        "container_id": wanted.container_id,
        "project_id": wanted.project_id,
        "session_id": wanted.session_id,
        "policy": _dump(wanted.policy),
        "bound": _dump(wanted.bound) if wanted.bound is not None else None,
        "pid": wanted.process.pid if wanted.process else None,
        "start_ticks": wanted.process.start_ticks if wanted.process else None,
        "revision": attachment.revision,
        "create_time": (attachment.create_time - _EPOCH) // _MICROSECOND,
        "update_time": (attachment.update_time - _EPOCH) // _MICROSECOND,
    }


def _attachment(row: sa.Row[Any]) -> Attachment:
    wanted = Wanted(
        row.container_id,
        row.project_id,
        _load(row.policy),
        _load(row.bound) if row.bound is not None else None,
        Process(row.pid, row.start_ticks) if row.pid is not None else None,
        row.session_id,
    )
    return Attachment(
        wanted,
        row.revision,
        _EPOCH + row.create_time * _MICROSECOND,
        _EPOCH + row.update_time * _MICROSECOND,
    )


def _dump(policy: Policy) -> str:
    return json.dumps(dataclasses.asdict(policy_texts(policy)))


def _load(text: str) -> Policy:
    found = json.loads(text)
    rules = tuple(
        RuleTexts(**{name: _tuple(value) for name, value in rule.items()})
        for rule in found.pop("rules")
    )
    return parse_policy(
        PolicyTexts(**{name: _tuple(value) for name, value in found.items()}, rules=rules)
    )


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
