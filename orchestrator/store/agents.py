"""Owns what is known of saved agents, as rows."""

from collections.abc import Callable

from sqlalchemy import Connection, delete, insert, select, update

from orchestrator.errors import AgentNotFound
from orchestrator.records import SavedAgent
from orchestrator.store import codec
from orchestrator.store.database import Database
from orchestrator.store.pages import Page, PageRequest, page_of
from orchestrator.store.requests import RequestId, find_answered, remember
from orchestrator.store.tables import agents, request_ids


class AgentStore:
    """Saved agents."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(self, agent: SavedAgent, request: RequestId | None) -> SavedAgent:
        """Keep an agent. A repeated request returns the one that the first made, as it is now.

        Errors: `RequestIdReused`; `AgentNotFound` when that one was deleted meanwhile.
        """

        def operation(connection: Connection) -> SavedAgent:
            known = find_answered(connection, request)
            if known is not None:
                return _get(connection, known)
            row = {
                "id": agent.id,
                "project_id": agent.project_id,
                "body": codec.SAVED_AGENT.write(agent),
            }
            connection.execute(insert(agents), row)
            remember(connection, request, agent.id)
            return agent

        return await self._database.write(operation)

    async def get(self, agent_id: str) -> SavedAgent:
        """One agent. Errors: `AgentNotFound`."""
        return await self._database.read(lambda c: _get(c, agent_id))

    async def page(self, project_id: str, request: PageRequest) -> Page[SavedAgent]:
        """Agents, newest first. Errors: `InvalidField`."""
        limit, after = request.limit(), request.after("agents")
        query = select(agents).where(agents.c.project_id == project_id)
        if after is not None:
            query = query.where(agents.c.ordinal < after)
        query = query.order_by(agents.c.ordinal.desc()).limit(limit + 1)
        found = await self._database.read(lambda c: c.execute(query).all())
        return page_of(found, limit, "agents", lambda row: codec.SAVED_AGENT.read(row.body))

    async def update(self, agent_id: str, change: Callable[[SavedAgent], SavedAgent]) -> SavedAgent:
        """Change an agent; `change` touches nothing else. Errors: `AgentNotFound`, its own."""

        def operation(connection: Connection) -> SavedAgent:
            changed = change(_get(connection, agent_id, lock=True))
            body = codec.SAVED_AGENT.write(changed)
            connection.execute(update(agents).where(agents.c.id == agent_id).values(body=body))
            return changed

        return await self._database.write(operation)

    async def remove(self, agent_id: str) -> None:
        """Forget an agent; does nothing when there is none."""

        def operation(connection: Connection) -> None:
            connection.execute(delete(agents).where(agents.c.id == agent_id))
            connection.execute(delete(request_ids).where(request_ids.c.resource_id == agent_id))

        await self._database.write(operation)


def _get(connection: Connection, agent_id: str, *, lock: bool = False) -> SavedAgent:
    query = select(agents.c.body).where(agents.c.id == agent_id)
    body = connection.execute(query.with_for_update() if lock else query).scalar()
    if body is None:
        raise AgentNotFound(agent_id)
    return codec.SAVED_AGENT.read(body)
