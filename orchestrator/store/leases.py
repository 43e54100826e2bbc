"""Owns who may write what a session's work leads to: one orchestrator at a time, by a number.

Whoever takes a session over gets a greater number than all before it. A step is written only
where its number is the session's still, so one that was paused and goes on writes nothing. An
orchestrator is alive for as long as it said last, by the database's clock; where a database is
not shared, whoever asks is the only one alive.
"""

import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import timedelta

from sqlalchemy import Connection, bindparam, delete, exists, insert, or_, select, text, update

from orchestrator.errors import DatabaseUnavailable, LeaseLost, SessionNotFound
from orchestrator.store.database import Database
from orchestrator.store.rows import unfinished_sessions
from orchestrator.store.tables import orchestrators, sessions

DEFAULT_TIME = timedelta(seconds=10)
"""How long an orchestrator that says nothing counts as alive."""

_MICROS = "SELECT CAST(extract(epoch FROM clock_timestamp()) * 1000000 AS BIGINT)"
_MINE = update(sessions).where(sessions.c.id == bindparam("session"))
_NUMBERED = {"holder": bindparam("name"), "lease": sessions.c.lease + 1}
_TAKE = _MINE.values(_NUMBERED).returning(sessions.c.lease)
_TAKE_IF_FREE = _TAKE.where(
    or_(
        sessions.c.holder.in_(("", bindparam("name"))),
        ~exists().where(
            orchestrators.c.name == sessions.c.holder,
            orchestrators.c.alive_until > bindparam("now"),
        ),
    )
)
_GIVE_BACK = _MINE.where(sessions.c.lease == bindparam("number")).values(holder="")
_HOLDER = select(sessions.c.holder).where(sessions.c.id == bindparam("session"))


class Leases:
    """The leases of one orchestrator, known to the others by `name`."""

    def __init__(
        self, database: Database, name: str = "orchestrator", lasting: timedelta = DEFAULT_TIME
    ) -> None:
        self._database = database
        self._name = name
        self._lasting = lasting

    @property
    def beat(self) -> timedelta:
        """How often to say that this one is alive."""
        return self._lasting / 5

    def take(self, connection: Connection, session_id: str) -> int:
        """The number under which this orchestrator works on a session from now on.

        Errors: `SessionNotFound`; `LeaseLost` when another one has it and is alive.
        """
        wanted: dict[str, object] = {"session": session_id, "name": self._name}
        if self._database.is_shared:
            wanted["now"] = _now(connection)
            number = connection.execute(_TAKE_IF_FREE, wanted).scalar()
        else:
            number = connection.execute(_TAKE, wanted).scalar()
        if number is not None:
            return int(number)
        if connection.execute(_HOLDER, {"session": session_id}).first() is None:
            raise SessionNotFound(session_id)
        raise LeaseLost(session_id)

    @asynccontextmanager
    async def living(self) -> AsyncIterator[None]:
        """Alive from the beginning to the end of the body; then the others may take over."""
        if not self._database.is_shared:
            yield
            return
        await self.stay_alive()
        try:
            yield
        finally:
            mine = delete(orchestrators).where(orchestrators.c.name == self._name)
            with suppress(DatabaseUnavailable):
                await self._database.write(lambda c: c.execute(mine).rowcount)

    async def stay_alive(self) -> None:
        """Tell the others that this one is alive."""

        def operation(connection: Connection) -> None:
            until = _now(connection) + self._lasting // timedelta(microseconds=1)
            mine = orchestrators.c.name == self._name
            told = connection.execute(update(orchestrators).where(mine).values(alive_until=until))
            if not told.rowcount:
                row = {"name": self._name, "project_id": "default", "alive_until": until}
                connection.execute(insert(orchestrators), row)

        await self._database.write(operation)

    async def abandoned(self) -> Sequence[str]:
        """Sessions with work to do on which no other orchestrator that is alive works."""

        def operation(connection: Connection) -> Sequence[str]:
            unfinished = unfinished_sessions(connection)
            others = select(sessions.c.id).where(
                sessions.c.holder != self._name,
                sessions.c.holder == orchestrators.c.name,
                orchestrators.c.alive_until > _now(connection),
            )
            theirs = set(connection.execute(others).scalars())
            return [session_id for session_id in unfinished if session_id not in theirs]

        return await self._database.read(operation)


def give_back(connection: Connection, session_id: str, number: int) -> None:
    """Let anybody work on a session, if it is held under this number still."""
    connection.execute(_GIVE_BACK, {"session": session_id, "number": number})


def _now(connection: Connection) -> int:
    """Microseconds since 1970 by the clock that all who share the database have."""
    if connection.dialect.name == "sqlite":
        return time.time_ns() // 1000
    return int(connection.execute(text(_MICROS)).scalar_one())
