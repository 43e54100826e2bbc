"""Owns what callers do with sessions; how a turn goes on is not decided here."""

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

import structlog

from orchestrator import ids
from orchestrator.agents import Agents, Caller, check_paths
from orchestrator.blobs import Blobs
from orchestrator.errors import SessionNotFound, StoredFileNotFound
from orchestrator.records import (
    Agent,
    ContentPart,
    Environment,
    EnvironmentFile,
    Event,
    Item,
    ItemState,
    Review,
    Script,
    Session,
    SessionState,
    Turn,
    TurnState,
    UserMessage,
)
from orchestrator.sessions.feed import Feeds
from orchestrator.sessions.specs import (
    FileSpec,
    SessionSpec,
    check_agent,
    check_input,
    check_metadata,
    check_session,
)
from orchestrator.sessions.workers import Workers
from orchestrator.store.files import FileStore
from orchestrator.store.reading import SessionReader
from orchestrator.store.requests import RequestId
from orchestrator.store.sessions import Input, SessionStore
from orchestrator.turns.environment import session_blobs
from orchestrator.turns.ports import Environments
from workroom.errors import InvalidField, NotSupported, WorkroomError

log = structlog.get_logger(__name__)

QUEUE_LIMIT = 16
"""Turns that may wait in one session."""


@dataclass(frozen=True, slots=True)
class SessionChange:
    """What is to be changed in a session: what `paths` names. `review` None is an unset one."""

    paths: frozenset[str]
    agent: Agent
    review: Review | None
    metadata: Mapping[str, str]


class Sessions:
    """Conversations with agents."""

    def __init__(
        self,
        *,
        store: SessionStore,
        reader: SessionReader,
        files: FileStore,
        blobs: Blobs,
        feeds: Feeds,
        workers: Workers,
        agents: Agents,
        environments: Environments,
        clock: Callable[[], datetime],
    ) -> None:
        self._store = store
        self._reader = reader
        self._files = files
        self._blobs = blobs
        self._feeds = feeds
        self._workers = workers
        self._agents = agents
        self._environments = environments
        self._clock = clock

    async def create(
        self, spec: SessionSpec, request: RequestId | None, caller: Caller
    ) -> tuple[Session, str]:
        """A new session, and the id of the turn that its input began (empty without input).

        Errors: `InvalidField`, `NotSupported`, `StoredFileNotFound`, `RequestIdReused`,
        `EndpointNotAllowed`, `AgentNotFound`, `DiskFull`, `EgressUnavailable`.
        """
        check_session(spec)
        agent = await self._agents.resolved(spec.agent_id, spec.agent, spec.endpoint_key, caller)
        await self._environments.check_network(spec.environment.network)
        session_id = ids.new("sess")
        folder = session_blobs(session_id)
        now = self._clock()
        try:
            environment = await self._environment(spec, session_id)
            session = Session(
                id=session_id,
                project_id=spec.project_id,
                state=SessionState.IDLE,
                agent=agent,
                environment=environment,
                review=spec.review,
                metadata=dict(spec.metadata),
                create_time=now,
                last_active_time=now,
                agent_id=spec.agent_id,
            )
            first = self._input(session_id, spec.input) if spec.input else None
            made_id, turn_id = await self._store.create(session, first, request)
        except Exception:
            await self._blobs.delete(folder)
            raise
        if made_id != session_id:
            await self._blobs.delete(folder)
        self._workers.wake(made_id)
        return await self._reader.get(made_id), turn_id

    async def update(self, session_id: str, change: SessionChange) -> Session:
        """Change a session, at once and as a whole; a turn that runs goes on as it began.

        Errors: `InvalidField`, `NotSupported`, `SessionNotFound`.
        """
        check_paths(change.paths, {"metadata", "review", "agent.model", "agent.reasoning"})
        if "review" in change.paths and change.review is None:
            raise InvalidField("review", "cannot be cleared; the value is `none`")
        if "review" in change.paths and change.review is not Review.NONE:
            raise NotSupported("review", "only REVIEW_NONE is available in this version")
        metadata = dict(change.metadata) if "metadata" in change.paths else None
        if metadata is not None:
            check_metadata(metadata)

        def changed(agent: Agent) -> Agent:
            if "agent.reasoning" in change.paths:
                agent = replace(agent, reasoning=change.agent.reasoning)
            if "agent.model" not in change.paths:
                return agent
            if isinstance(agent.provider, Script):
                raise InvalidField("agent.model", "must be empty where a script is played")
            agent = replace(agent, model=change.agent.model)
            check_agent(agent)
            return self._agents.settled(agent)

        await self._store.update(session_id, changed, metadata)
        return await self._reader.get(session_id)

    async def submit(
        self, session_id: str, parts: Sequence[ContentPart], request: RequestId | None
    ) -> Turn:
        """Give the agent input.

        Errors: `InvalidField`, `SessionNotFound`, `SessionFailed`, `QueueFull`,
        `RequestIdReused`.
        """
        check_input(parts)
        arriving = self._input(session_id, tuple(parts))
        turn = await self._store.submit(session_id, arriving, request, limit=QUEUE_LIMIT)
        self._workers.wake(session_id)
        return turn

    async def cancel(self, session_id: str) -> Sequence[Turn]:
        """Cancel what a session does and is to do; the turns, once they have ended.

        Errors: `SessionNotFound`.
        """
        found = await self._store.request_cancel(session_id)
        if found.running is None:
            return found.queued
        await self._workers.interrupt(session_id, found.running.id)
        ended = await self._reader.get_turn(found.running.id)
        return (ended, *found.queued) if ended.state is TurnState.CANCELLED else found.queued

    async def delete(self, session_id: str) -> None:
        """End a session and forget it with all its bytes; does nothing when it is gone."""
        try:
            session = await self._reader.get(session_id)
        except SessionNotFound:
            return
        await self._store.delete(session_id)
        self._feeds.close(session_id)
        await self._workers.dismiss(session_id)
        await self._blobs.delete(session_blobs(session_id))
        await self._dispose(session.environment.container_id)

    def watch(
        self, session_id: str, after: int, *, until_idle: bool, durable_only: bool
    ) -> AsyncGenerator[Event, None]:
        """Events after a place in the log. Errors: `SessionNotFound`, `SequenceOutOfRange`."""
        return self._feeds.watch(
            self._reader, session_id, after, until_idle=until_idle, durable_only=durable_only
        )

    async def read_artifact(self, artifact_id: str) -> AsyncIterator[bytes]:
        """An artifact's content. Errors: `ArtifactNotFound`."""
        artifact = await self._reader.artifact(artifact_id)
        async for data in self._blobs.read(artifact.blob):
            yield data

    async def _dispose(self, container_id: str) -> None:
        try:
            if container_id:
                await self._environments.dispose(container_id)
            else:
                # One may have been made whose id was not recorded.
                await self._environments.sweep(self._reader.live_environments)
        except WorkroomError as error:
            log.warning("container stays for the next sweep", detail=error.message)

    async def _environment(self, spec: SessionSpec, session_id: str) -> Environment:
        asked = spec.environment
        return Environment(
            id=ids.new("env"),
            session_id=session_id,
            project_id=spec.project_id,
            image=asked.image or "base",
            size=asked.size,
            files=tuple(
                [
                    await self._stage(file, f"{session_blobs(session_id)}/files/{number}")
                    for number, file in enumerate(asked.files)
                ]
            ),
            network=asked.network,
            env=dict(asked.env),
            permissions=asked.permissions,
        )

    async def _stage(self, file: FileSpec, blob: str) -> EnvironmentFile:
        """Keep a file's content for this session, whatever becomes of the uploaded one."""
        if isinstance(file.source, bytes):
            content = file.source
            await self._blobs.write(blob, _once(content), limit_bytes=len(content))
            return EnvironmentFile(file.path, len(content), blob, "", file.description)
        stored = await self._files.get(file.source)
        try:
            await self._blobs.share(stored.blob, blob)
        except FileNotFoundError as error:
            raise StoredFileNotFound(file.source) from error
        return EnvironmentFile(file.path, stored.size_bytes, blob, stored.id, file.description)

    def _input(self, session_id: str, parts: tuple[ContentPart, ...]) -> Input:
        now = self._clock()
        turn = Turn(ids.new("turn"), session_id, TurnState.QUEUED, now)
        item = Item(
            id=ids.new("msg"),
            session_id=session_id,
            turn_id=turn.id,
            state=ItemState.COMPLETED,
            create_time=now,
            content=UserMessage(parts),
        )
        return Input(turn, item)


async def _once(content: bytes) -> AsyncIterator[bytes]:
    yield content
