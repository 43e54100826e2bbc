"""Owns the callers' keys: made here, shown once, kept as SHA-256 only."""

import hashlib
import secrets
from collections.abc import Callable
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, delete, insert, select

from orchestrator import ids
from orchestrator.records import ApiKey
from orchestrator.store import codec
from orchestrator.store.database import Database
from orchestrator.store.pages import Page, PageRequest, page_of
from orchestrator.store.tables import api_keys

PREFIX = "wr_"


class KeyStore:
    """Keys that callers present."""

    def __init__(self, database: Database, clock: Callable[[], datetime]) -> None:
        self._database = database
        self._clock = clock

    async def create(self, project_id: str, name: str) -> tuple[ApiKey, str]:
        """A new key and its secret, which nobody can ask for again."""
        secret = PREFIX + secrets.token_urlsafe(32)
        key = ApiKey(ids.new("key"), project_id, name, self._clock())
        row = {
            "id": key.id,
            "project_id": project_id,
            "name": name,
            "create_time": codec.to_micros(key.create_time),
            "sha256": _digest(secret),
        }
        await self._database.write(lambda c: c.execute(insert(api_keys), row).rowcount)
        return key, secret

    async def find(self, secret: str) -> ApiKey | None:
        """Whose key this is; None when it is nobody's. Compared by digest only."""
        query = select(api_keys).where(api_keys.c.sha256 == _digest(secret))
        row = await self._database.read(lambda c: c.execute(query).first())
        return None if row is None else _key(row)

    async def page(self, project_id: str, request: PageRequest) -> Page[ApiKey]:
        """Keys, newest first. Errors: `InvalidField`."""
        limit, after = request.limit(), request.after("keys")
        query = select(api_keys).where(api_keys.c.project_id == project_id)
        if after is not None:
            query = query.where(api_keys.c.ordinal < after)
        query = query.order_by(api_keys.c.ordinal.desc()).limit(limit + 1)
        found = await self._database.read(lambda c: c.execute(query).all())
        return page_of(found, limit, "keys", _key)

    async def remove(self, key_id: str) -> None:
        """Make a key worthless at once; does nothing when there is none."""

        def operation(connection: Connection) -> None:
            connection.execute(delete(api_keys).where(api_keys.c.id == key_id))

        await self._database.write(operation)


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def _key(row: Row[Any]) -> ApiKey:
    return ApiKey(row.id, row.project_id, row.name, codec.from_micros(row.create_time))
