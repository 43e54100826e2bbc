"""Owns the memory of `request_id`s: the same id gives the same resource, never a second one."""

from dataclasses import dataclass

from sqlalchemy import Connection, bindparam, insert, select

from orchestrator.errors import RequestIdReused
from orchestrator.store.tables import request_ids


@dataclass(frozen=True, slots=True)
class RequestId:
    """A caller's id for one call; `digest` is the SHA-256 of all that it asks for."""

    project_id: str
    scope: str
    value: str
    digest: str


_FIND = select(request_ids.c.digest, request_ids.c.resource_id).where(
    request_ids.c.project_id == bindparam("project"),
    request_ids.c.scope == bindparam("scope"),
    request_ids.c.request_id == bindparam("value"),
)


def find_answered(connection: Connection, request: RequestId | None) -> str | None:
    """The resource that this request made before, if it did. Errors: `RequestIdReused`."""
    if request is None:
        return None
    row = connection.execute(
        _FIND,
        {"project": request.project_id, "scope": request.scope, "value": request.value},
    ).first()
    if row is None:
        return None
    if row.digest != request.digest:
        raise RequestIdReused(request.value)
    return str(row.resource_id)


def remember(
    connection: Connection, request: RequestId | None, resource_id: str, session_id: str = ""
) -> None:
    """Keep what a request made; with a session, for as long as that lives."""
    if request is None:
        return
    connection.execute(
        insert(request_ids),
        {
            "project_id": request.project_id,
            "scope": request.scope,
            "request_id": request.value,
            "digest": request.digest,
            "resource_id": resource_id,
            "session_id": session_id,
        },
    )
