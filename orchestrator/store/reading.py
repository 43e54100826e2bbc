"""Owns questions about sessions and what is in them; writes nothing."""

from collections.abc import Mapping, Sequence

from orchestrator.errors import ArtifactNotFound, SessionNotFound, TurnNotFound
from orchestrator.records import (
    Artifact,
    EnvironmentState,
    Event,
    Item,
    Session,
    Turn,
    TurnState,
)
from orchestrator.store import conversation, log, rows
from orchestrator.store.database import Database
from orchestrator.store.pages import Page, PageRequest


class SessionReader:
    """Sessions as they are on disk, whatever is being written meanwhile."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def get(self, session_id: str) -> Session:
        """One session. Errors: `SessionNotFound`."""
        found = await self._database.read(lambda c: rows.session(c, session_id))
        if found is None:
            raise SessionNotFound(session_id)
        return found

    async def page(
        self, project_id: str, request: PageRequest, pairs: Mapping[str, str], agent_id: str = ""
    ) -> Page[Session]:
        """Sessions that carry all of `pairs`, newest first; with `agent_id` those of that agent.

        Errors: `InvalidField`.
        """
        return await self._database.read(
            lambda c: rows.sessions_page(c, project_id, request, pairs, agent_id)
        )

    async def get_turn(self, turn_id: str) -> Turn:
        """One turn. Errors: `TurnNotFound`."""
        found = await self._database.read(lambda c: conversation.find_turn(c, turn_id))
        if found is None:
            raise TurnNotFound(turn_id)
        return found.turn

    async def cancelled_turn(self, session_id: str) -> str:
        """The turn in progress whose cancellation is recorded; empty where there is none."""
        running = await self._database.read(
            lambda c: conversation.turns_in(c, session_id, TurnState.IN_PROGRESS)
        )
        return next((p.turn.id for p in running if p.cancel_requested), "")

    async def list_turns(self, session_id: str, request: PageRequest) -> Page[Turn]:
        """Turns, oldest first. Errors: `SessionNotFound`, `InvalidField`."""
        return await self._database.read(lambda c: conversation.turns_page(c, session_id, request))

    async def list_items(self, session_id: str, turn_id: str, request: PageRequest) -> Page[Item]:
        """Items, of one turn or (empty) of all, oldest first.

        Errors: `SessionNotFound`, `InvalidField`.
        """
        return await self._database.read(
            lambda c: conversation.items_page(c, session_id, turn_id, request)
        )

    async def items(self, session_id: str) -> tuple[Item, ...]:
        """All items of a session, oldest first."""
        return await self._database.read(lambda c: conversation.all_items(c, session_id))

    async def list_artifacts(self, session_id: str, request: PageRequest) -> Page[Artifact]:
        """Artifacts, oldest first. Errors: `SessionNotFound`, `InvalidField`."""
        return await self._database.read(
            lambda c: conversation.artifacts_page(c, session_id, request)
        )

    async def latest_artifacts(self, session_id: str) -> Mapping[str, Artifact]:
        """The artifact that was published last for each path."""
        return await self._database.read(lambda c: conversation.latest_artifacts(c, session_id))

    async def artifact(self, artifact_id: str) -> Artifact:
        """One artifact. Errors: `ArtifactNotFound`."""
        found = await self._database.read(lambda c: conversation.find_artifact(c, artifact_id))
        if found is None:
            raise ArtifactNotFound(artifact_id)
        return found

    async def events_after(self, session_id: str, after: int, limit: int) -> tuple[Event, ...]:
        """Durable events that follow number `after`, at most `limit`."""
        return await self._database.read(lambda c: log.read_after(c, session_id, after, limit))

    async def unfinished(self) -> Sequence[str]:
        """Sessions with work to do: turns that have not ended, environments not made yet."""
        return await self._database.read(rows.unfinished_sessions)

    async def live_environments(self) -> frozenset[str]:
        """Ids of the environments whose containers are still wanted."""
        states = (EnvironmentState.PENDING, EnvironmentState.READY, EnvironmentState.SUSPENDED)
        return frozenset(await self._database.read(lambda c: rows.environments_in(c, states)))

    async def known(self, session_ids: Sequence[str]) -> frozenset[str]:
        """Those of the sessions that exist."""
        return await self._database.read(lambda c: rows.known_sessions(c, session_ids))

    async def some_sealed_key(self) -> str:
        """Some encrypted key, to try the vault on; empty where there is none."""
        return await self._database.read(rows.some_sealed_key)
