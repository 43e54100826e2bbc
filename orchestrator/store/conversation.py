"""Owns the statements about turns, items and artifacts: rows to records and back."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from sqlalchemy import (
    Connection,
    Row,
    Select,
    Table,
    bindparam,
    insert,
    select,
    update,
)

from orchestrator.errors import TurnNotFound
from orchestrator.records import (
    Artifact,
    CommandExecution,
    Ended,
    Item,
    ItemState,
    Stage,
    Turn,
    TurnError,
    TurnProgress,
    TurnState,
)
from orchestrator.store import codec
from orchestrator.store.pages import Page, PageRequest, page_of
from orchestrator.store.prepared import Prepared
from orchestrator.store.rows import session_head
from orchestrator.store.tables import (
    artifacts,
    items,
    turns,
)

_TURN = select(turns).where(turns.c.id == bindparam("turn"))
_TURNS_IN = (
    select(turns)
    .where(turns.c.session_id == bindparam("session"), turns.c.state == bindparam("in_state"))
    .order_by(turns.c.ordinal)
)
_FIRST_TURN = (
    select(turns.c.id)
    .where(turns.c.session_id == bindparam("session"))
    .order_by(turns.c.ordinal)
    .limit(1)
)
_UPDATE_TURN = Prepared(
    update(turns)
    .where(turns.c.id == bindparam("turn"))
    .values(
        state=bindparam("new_state"),
        stage=bindparam("new_stage"),
        step=bindparam("new_step"),
        cancel_requested=bindparam("cancel"),
        body=bindparam("new_body"),
    )
)
_INSERT_ITEM = Prepared(insert(items))
_UPDATE_ITEM = Prepared(
    update(items)
    .where(items.c.id == bindparam("item"))
    .values(state=bindparam("new_state"), body=bindparam("new_body"))
)
_OPEN_ITEMS = (
    select(items.c.body)
    .where(items.c.turn_id == bindparam("turn"), items.c.state == ItemState.IN_PROGRESS.value)
    .order_by(items.c.ordinal)
)
_ALL_ITEMS = (
    select(items.c.body).where(items.c.session_id == bindparam("session")).order_by(items.c.ordinal)
)


def insert_turn(connection: Connection, progress: TurnProgress) -> None:
    turn = progress.turn
    connection.execute(
        insert(turns),
        {
            "id": turn.id,
            "session_id": turn.session_id,
            "project_id": progress.project_id,
            "state": turn.state.value,
            "stage": progress.stage.value,
            "step": progress.step,
            "cancel_requested": progress.cancel_requested,
            "body": codec.TURN.write(turn),
        },
    )


def update_turn(connection: Connection, progress: TurnProgress) -> None:
    _UPDATE_TURN.run(
        connection,
        {
            "turn": progress.turn.id,
            "new_state": progress.turn.state.value,
            "new_stage": progress.stage.value,
            "new_step": progress.step,
            "cancel": progress.cancel_requested,
            "new_body": codec.TURN.write(progress.turn),
        },
    )


def find_turn(connection: Connection, turn_id: str) -> TurnProgress | None:
    row = connection.execute(_TURN, {"turn": turn_id}).first()
    return None if row is None else _progress(row)


def turn(connection: Connection, turn_id: str) -> TurnProgress:
    """Errors: `TurnNotFound`."""
    found = find_turn(connection, turn_id)
    if found is None:
        raise TurnNotFound(turn_id)
    return found


def turns_in(connection: Connection, session_id: str, state: TurnState) -> Sequence[TurnProgress]:
    """The session's turns in this state, oldest first."""
    found = connection.execute(_TURNS_IN, {"session": session_id, "in_state": state.value})
    return [_progress(row) for row in found]


def first_turn_id(connection: Connection, session_id: str) -> str:
    """The first turn of a session; empty when it has none."""
    return connection.execute(_FIRST_TURN, {"session": session_id}).scalar() or ""


def turns_page(connection: Connection, session_id: str, request: PageRequest) -> Page[Turn]:
    session_head(connection, session_id)
    query = select(turns).where(turns.c.session_id == session_id)
    return _oldest_first(connection, query, turns, request, lambda row: _progress(row).turn)


def with_error(progress: TurnProgress, code: str, message: str) -> TurnProgress:
    return replace(progress, turn=replace(progress.turn, error=TurnError(code, message)))


def insert_items(connection: Connection, project_id: str, added: Iterable[Item]) -> None:
    _INSERT_ITEM.run(
        connection,
        *(
            {
                "id": item.id,
                "session_id": item.session_id,
                "turn_id": item.turn_id,
                "project_id": project_id,
                "state": item.state.value,
                "body": codec.ITEM.write(item),
            }
            for item in added
        ),
    )


def update_item(connection: Connection, item: Item) -> None:
    _UPDATE_ITEM.run(
        connection,
        {"item": item.id, "new_state": item.state.value, "new_body": codec.ITEM.write(item)},
    )


def open_items(connection: Connection, turn_id: str) -> Sequence[Item]:
    """Items of the turn that are not over, oldest first."""
    found = connection.execute(_OPEN_ITEMS, {"turn": turn_id})
    return [codec.ITEM.read(body) for body in found.scalars()]


def closed(item: Item, words: str, now: datetime) -> Item:
    """The item as it is when its turn ends before it does."""
    content = item.content
    if isinstance(content, CommandExecution):
        content = replace(content, outcome=Ended(words))
    return replace(item, state=ItemState.INCOMPLETE, content=content)


def all_items(connection: Connection, session_id: str) -> tuple[Item, ...]:
    found = connection.execute(_ALL_ITEMS, {"session": session_id})
    return tuple(codec.ITEM.read(body) for body in found.scalars())


def items_page(
    connection: Connection, session_id: str, turn_id: str, request: PageRequest
) -> Page[Item]:
    session_head(connection, session_id)
    query = select(items).where(items.c.session_id == session_id)
    if turn_id:
        query = query.where(items.c.turn_id == turn_id)
    return _oldest_first(connection, query, items, request, lambda row: codec.ITEM.read(row.body))


def insert_artifacts(
    connection: Connection, project_id: str, published: Iterable[Artifact]
) -> None:
    connection.execute(
        insert(artifacts),
        [
            {
                "id": artifact.id,
                "session_id": artifact.session_id,
                "project_id": project_id,
                "path": artifact.path,
                "body": codec.ARTIFACT.write(artifact),
            }
            for artifact in published
        ],
    )


def artifacts_page(connection: Connection, session_id: str, request: PageRequest) -> Page[Artifact]:
    session_head(connection, session_id)
    query = select(artifacts).where(artifacts.c.session_id == session_id)
    return _oldest_first(
        connection, query, artifacts, request, lambda row: codec.ARTIFACT.read(row.body)
    )


def latest_artifacts(connection: Connection, session_id: str) -> dict[str, Artifact]:
    query = (
        select(artifacts.c.path, artifacts.c.body)
        .where(artifacts.c.session_id == session_id)
        .order_by(artifacts.c.ordinal)
    )
    return {row.path: codec.ARTIFACT.read(row.body) for row in connection.execute(query)}


def find_artifact(connection: Connection, artifact_id: str) -> Artifact | None:
    query = select(artifacts.c.body).where(artifacts.c.id == artifact_id)
    body = connection.execute(query).scalar()
    return None if body is None else codec.ARTIFACT.read(body)


def _oldest_first(
    connection: Connection,
    query: Select[Any],
    table: Table,
    request: PageRequest,
    read: Any,
) -> Page[Any]:
    limit, after = request.limit(), request.after(table.name)
    if after is not None:
        query = query.where(table.c.ordinal > after)
    found = connection.execute(query.order_by(table.c.ordinal).limit(limit + 1)).all()
    return page_of(found, limit, table.name, read)


def _progress(row: Row[Any]) -> TurnProgress:
    return TurnProgress(
        turn=codec.TURN.read(row.body),
        project_id=row.project_id,
        stage=Stage(row.stage),
        step=row.step,
        cancel_requested=bool(row.cancel_requested),
    )
