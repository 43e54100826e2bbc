"""Owns the event log of each session: numbers without gaps, given in the writing transaction."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from sqlalchemy import (
    BigInteger,
    Connection,
    Row,
    bindparam,
    insert,
    literal_column,
    or_,
    select,
    update,
)

from orchestrator.errors import LeaseLost, SessionNotFound
from orchestrator.records import Environment, Event, EventKind, Payload, SessionState, Usage
from orchestrator.store import codec
from orchestrator.store.prepared import Prepared
from orchestrator.store.tables import events, sessions


@dataclass(frozen=True, slots=True)
class Draft:
    """An event that has no number yet."""

    kind: EventKind
    payload: Payload
    turn_id: str = ""


_LEASE = bindparam("lease", type_=BigInteger)
_COUNTING = (
    update(sessions)
    .where(
        sessions.c.id == bindparam("session"),
        or_(_LEASE == literal_column("0"), sessions.c.lease == _LEASE),
    )
    .values(
        last_sequence_number=sessions.c.last_sequence_number + bindparam("count"),
        last_active_time=bindparam("now"),
    )
    .returning(sessions.c.last_sequence_number, sessions.c.project_id)
)
_COUNT = Prepared(_COUNTING)
_COUNT_AND_USE = Prepared(_COUNTING.values(usage=bindparam("new_usage")))
_INSERT = Prepared(insert(events))
_SET_STATE = (
    update(sessions)
    .where(sessions.c.id == bindparam("session"))
    .values(state=bindparam("new_state"), error=bindparam("new_error"))
)
_REST = _SET_STATE.values(holder="")
_EXISTS = select(sessions.c.id).where(sessions.c.id == bindparam("session"))
_AFTER = (
    select(events)
    .where(
        events.c.session_id == bindparam("session"),
        events.c.sequence_number > bindparam("after"),
    )
    .order_by(events.c.sequence_number)
    .limit(bindparam("most"))
)


def append(
    connection: Connection,
    session_id: str,
    drafts: Sequence[Draft],
    now: datetime,
    usage: Usage | None = None,
    lease: int = 0,
) -> tuple[Event, ...]:
    """Number the events and add them; with `usage` that is the session's from now on.

    With a `lease`, only whoever holds the session under this number may.

    Errors: `SessionNotFound`, `LeaseLost`.
    """
    row: dict[str, object] = {
        "session": session_id,
        "lease": lease,
        "count": len(drafts),
        "now": codec.to_micros(now),
    }
    if usage is None:
        counted = _COUNT.returned(connection, row)
    else:
        row["new_usage"] = codec.USAGE.write(usage)
        counted = _COUNT_AND_USE.returned(connection, row)
    if counted is None:
        if lease and connection.execute(_EXISTS, {"session": session_id}).first() is not None:
            raise LeaseLost(session_id)
        raise SessionNotFound(session_id)
    last, project_id = counted
    numbered = tuple(
        Event(
            session_id=session_id,
            kind=draft.kind,
            payload=_shown(draft.payload),
            create_time=now,
            turn_id=draft.turn_id,
            sequence_number=number,
        )
        for number, draft in enumerate(drafts, last - len(drafts) + 1)
    )
    if numbered:
        _INSERT.run(connection, *(_row(event, project_id) for event in numbered))
    return numbered


def set_state(
    connection: Connection, session_id: str, state: SessionState, error: str = ""
) -> None:
    """Change the state of a session; the event that says so is appended by the caller.

    Where nothing is to be done any more, nobody holds it.
    """
    statement = _SET_STATE if state is SessionState.IN_PROGRESS else _REST
    connection.execute(
        statement, {"session": session_id, "new_state": state.value, "new_error": error}
    )


def read_after(
    connection: Connection, session_id: str, after: int, limit: int
) -> tuple[Event, ...]:
    """At most `limit` events that follow number `after`, in order."""
    rows = connection.execute(_AFTER, {"session": session_id, "after": after, "most": limit})
    return tuple(_event(row) for row in rows)


def _shown(payload: Payload) -> Payload:
    """What a log may keep: variables of an environment are never shown again."""
    if isinstance(payload, Environment):
        return replace(payload, env={}, data_map=None)
    return payload


def _row(event: Event, project_id: str) -> dict[str, object]:
    return {
        "session_id": event.session_id,
        "sequence_number": event.sequence_number,
        "project_id": project_id,
        "turn_id": event.turn_id,
        "kind": event.kind.value,
        "create_time": codec.to_micros(event.create_time),
        "body": codec.write_payload(event.kind, event.payload),
    }


def _event(row: Row[tuple[object, ...]]) -> Event:
    kind = EventKind(row.kind)
    return Event(
        session_id=row.session_id,
        kind=kind,
        payload=codec.read_payload(kind, row.body),
        create_time=codec.from_micros(row.create_time),
        turn_id=row.turn_id,
        sequence_number=row.sequence_number,
    )
