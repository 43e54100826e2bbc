"""Owns the statements about sessions and environments: rows to records and back."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    Connection,
    Row,
    bindparam,
    delete,
    insert,
    select,
    union,
    update,
)

from orchestrator.errors import SessionNotFound
from orchestrator.records import (
    Agent,
    Environment,
    EnvironmentState,
    ModelEndpoint,
    Review,
    Session,
    SessionState,
    TurnState,
)
from orchestrator.store import codec
from orchestrator.store.codec import Codec
from orchestrator.store.pages import Page, PageRequest, page_of
from orchestrator.store.tables import (
    agents,
    environments,
    request_ids,
    session_metadata,
    sessions,
    turns,
)


@dataclass(frozen=True, slots=True)
class _SessionBody:
    """What of a session changes only when a caller asks for it."""

    agent: Agent
    review: Review
    metadata: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class SessionHead:
    """What of a session decides whether it takes input."""

    project_id: str
    state: SessionState
    error: str


_BODY = Codec(_SessionBody)
_SESSION = select(sessions, environments.c.body.label("environment")).join(
    environments, environments.c.session_id == sessions.c.id
)
_ONE_SESSION = _SESSION.where(sessions.c.id == bindparam("session"))
_HEAD = select(sessions.c.project_id, sessions.c.state, sessions.c.error).where(
    sessions.c.id == bindparam("session")
)
_ONE_BODY = select(sessions.c.project_id, sessions.c.body).where(
    sessions.c.id == bindparam("session")
)
_LOCKED_HEAD = _HEAD.with_for_update()
_UPDATE_ENVIRONMENT = (
    update(environments)
    .where(environments.c.id == bindparam("environment"))
    .values(state=bindparam("new_state"), body=bindparam("new_body"))
)


def insert_session(connection: Connection, session: Session) -> None:
    body = _SessionBody(session.agent, session.review, session.metadata)
    connection.execute(
        insert(sessions),
        {
            "id": session.id,
            "project_id": session.project_id,
            "state": session.state.value,
            "last_sequence_number": session.last_sequence_number,
            "create_time": codec.to_micros(session.create_time),
            "last_active_time": codec.to_micros(session.last_active_time),
            "error": session.error,
            "usage": codec.USAGE.write(session.usage),
            "body": _BODY.write(body),
            "agent_id": session.agent_id,
        },
    )
    environment = session.environment
    connection.execute(
        insert(environments),
        {
            "id": environment.id,
            "session_id": session.id,
            "project_id": session.project_id,
            "state": environment.state.value,
            "body": codec.ENVIRONMENT.write(environment),
        },
    )
    _insert_metadata(connection, session.id, session.project_id, session.metadata)


def update_session(
    connection: Connection,
    session_id: str,
    change: Callable[[Agent], Agent],
    metadata: Mapping[str, str] | None,
) -> None:
    """Change what of a session does not change by itself; `metadata` None leaves them."""
    row = connection.execute(_ONE_BODY, {"session": session_id}).one()
    body = _BODY.read(row.body)
    kept = body.metadata if metadata is None else metadata
    changed = _BODY.write(_SessionBody(change(body.agent), body.review, kept))
    connection.execute(update(sessions).where(sessions.c.id == session_id).values(body=changed))
    if metadata is not None:
        mine = session_metadata.c.session_id == session_id
        connection.execute(delete(session_metadata).where(mine))
        _insert_metadata(connection, session_id, row.project_id, metadata)


def _insert_metadata(
    connection: Connection, session_id: str, project_id: str, pairs: Mapping[str, str]
) -> None:
    if pairs:
        connection.execute(
            insert(session_metadata),
            [
                {"session_id": session_id, "project_id": project_id, "key": key, "value": value}
                for key, value in pairs.items()
            ],
        )


def delete_session(connection: Connection, session_id: str) -> bool:
    connection.execute(delete(request_ids).where(request_ids.c.session_id == session_id))
    gone = connection.execute(delete(sessions).where(sessions.c.id == session_id))
    return gone.rowcount > 0


def session(connection: Connection, session_id: str) -> Session | None:
    row = connection.execute(_ONE_SESSION, {"session": session_id}).first()
    return None if row is None else _session(row)


def session_head(connection: Connection, session_id: str, *, lock: bool = False) -> SessionHead:
    """With `lock` nobody else changes the session before the transaction's end.

    Errors: `SessionNotFound`.
    """
    row = connection.execute(_LOCKED_HEAD if lock else _HEAD, {"session": session_id}).first()
    if row is None:
        raise SessionNotFound(session_id)
    return SessionHead(row.project_id, SessionState(row.state), row.error)


def sessions_page(
    connection: Connection,
    project_id: str,
    request: PageRequest,
    pairs: Mapping[str, str],
    agent_id: str = "",
) -> Page[Session]:
    limit, after = request.limit(), request.after("sessions")
    query = _SESSION.where(sessions.c.project_id == project_id)
    if agent_id:
        query = query.where(sessions.c.agent_id == agent_id)
    for key, value in pairs.items():
        carrying = select(session_metadata.c.session_id).where(
            session_metadata.c.project_id == project_id,
            session_metadata.c.key == key,
            session_metadata.c.value == value,
        )
        query = query.where(sessions.c.id.in_(carrying))
    if after is not None:
        query = query.where(sessions.c.ordinal < after)
    query = query.order_by(sessions.c.ordinal.desc()).limit(limit + 1)
    found = connection.execute(query).all()
    return page_of(found, limit, "sessions", _session)


def unfinished_sessions(connection: Connection) -> Sequence[str]:
    """Those with turns that have not ended or an environment to be made; failed ones aside."""
    working = (TurnState.QUEUED.value, TurnState.IN_PROGRESS.value)
    with_turns = select(turns.c.session_id).where(turns.c.state.in_(working))
    with_environment = (
        select(environments.c.session_id)
        .join(sessions, sessions.c.id == environments.c.session_id)
        .where(
            environments.c.state == EnvironmentState.PENDING.value,
            sessions.c.state != SessionState.FAILED.value,
        )
    )
    return connection.execute(union(with_turns, with_environment)).scalars().all()


def find_environment(connection: Connection, environment_id: str) -> Environment | None:
    query = select(environments.c.body).where(environments.c.id == environment_id)
    body = connection.execute(query).scalar()
    return None if body is None else codec.ENVIRONMENT.read(body)


def environments_in(connection: Connection, states: Iterable[EnvironmentState]) -> Sequence[str]:
    wanted = [state.value for state in states]
    query = select(environments.c.id).where(environments.c.state.in_(wanted))
    return connection.execute(query).scalars().all()


def known_sessions(connection: Connection, session_ids: Sequence[str]) -> frozenset[str]:
    found = connection.execute(select(sessions.c.id).where(sessions.c.id.in_(session_ids)))
    return frozenset(found.scalars())


def some_sealed_key(connection: Connection) -> str:
    """An encrypted key out of some session or saved agent; empty where none has one."""
    sealed = '%"sealed_key":"gAAAA%'
    query = select(sessions.c.body).where(sessions.c.body.like(sealed)).limit(1)
    body = connection.execute(query).scalar()
    agent = _BODY.read(body).agent if body else None
    if agent is None:
        query = select(agents.c.body).where(agents.c.body.like(sealed)).limit(1)
        body = connection.execute(query).scalar()
        agent = codec.SAVED_AGENT.read(body).agent if body else None
    provider = agent.provider if agent else None
    return provider.sealed_key if isinstance(provider, ModelEndpoint) else ""


def update_environment(connection: Connection, environment: Environment) -> None:
    connection.execute(
        _UPDATE_ENVIRONMENT,
        {
            "environment": environment.id,
            "new_state": environment.state.value,
            "new_body": codec.ENVIRONMENT.write(environment),
        },
    )


def _session(row: Row[Any]) -> Session:
    body = _BODY.read(row.body)
    return Session(
        id=row.id,
        project_id=row.project_id,
        state=SessionState(row.state),
        agent=body.agent,
        environment=codec.ENVIRONMENT.read(row.environment),
        review=body.review,
        metadata=body.metadata,
        create_time=codec.from_micros(row.create_time),
        last_active_time=codec.from_micros(row.last_active_time),
        usage=codec.USAGE.read(row.usage),
        error=row.error,
        last_sequence_number=row.last_sequence_number,
        agent_id=row.agent_id,
    )
