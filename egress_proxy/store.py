"""Owns the memory of attachments, in SQLite, so that a restart remembers them."""

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Self

import sqlalchemy as sa

from egress_proxy.attachments import Attachment
from egress_proxy.policy import Access, Policy
from workroom.sqlite import Sqlite

_metadata = sa.MetaData()

_attachments = sa.Table(
    "attachments",
    _metadata,
    sa.Column("number", sa.Integer, primary_key=True),
    sa.Column("container_id", sa.String, nullable=False, unique=True),
    sa.Column("project_id", sa.String, nullable=False),
    sa.Column("access", sa.String, nullable=False),
    sa.Column("allowed_domains", sa.Text, nullable=False),
    sa.Column("blocked_domains", sa.Text, nullable=False),
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
    return {
        "container_id": attachment.container_id,
        "project_id": attachment.project_id,
        "access": attachment.policy.access.value,
        "allowed_domains": json.dumps(attachment.policy.allowed_domains),
        "blocked_domains": json.dumps(attachment.policy.blocked_domains),
        "revision": attachment.revision,
        "create_time": (attachment.create_time - _EPOCH) // _MICROSECOND,
        "update_time": (attachment.update_time - _EPOCH) // _MICROSECOND,
    }


def _attachment(row: sa.Row[Any]) -> Attachment:
    policy = Policy(
        Access(row.access),
        tuple(json.loads(row.allowed_domains)),
        tuple(json.loads(row.blocked_domains)),
    )
    return Attachment(
        row.container_id,
        row.project_id,
        policy,
        row.revision,
        _EPOCH + row.create_time * _MICROSECOND,
        _EPOCH + row.update_time * _MICROSECOND,
    )
