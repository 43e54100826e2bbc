"""Owns sessions and all that is in them, as rows; decides nothing but what must be one transaction.

Every write that a watcher can see is a `Change` with its events; they are numbered in the same
transaction and handed to `publish` once they are on disk.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TypeVar

from sqlalchemy import Connection

from orchestrator.errors import QueueFull, SessionFailed
from orchestrator.records import (
    Agent,
    Artifact,
    Environment,
    EnvironmentState,
    Event,
    EventKind,
    Item,
    Session,
    SessionError,
    SessionState,
    Stage,
    Turn,
    TurnError,
    TurnProgress,
    TurnState,
    Usage,
)
from orchestrator.store import conversation, log, rows
from orchestrator.store.database import Database, Operation
from orchestrator.store.leases import Leases, give_back
from orchestrator.store.log import Draft
from orchestrator.store.requests import RequestId, find_answered, remember

T = TypeVar("T")
Publish = Callable[[Sequence[Event]], None]
Clock = Callable[[], datetime]


@dataclass(frozen=True, slots=True)
class Change:
    """What one step writes, all or nothing. `usage` is the session's, as it is from now on.

    `lease` is the number under which the session is worked on; 0 for what everybody may do.
    """

    session_id: str
    project_id: str
    drafts: tuple[Draft, ...] = ()
    added: tuple[Item, ...] = ()
    changed: tuple[Item, ...] = ()
    progress: TurnProgress | None = None
    environment: Environment | None = None
    artifacts: tuple[Artifact, ...] = ()
    usage: Usage | None = None
    lease: int = 0


@dataclass(frozen=True, slots=True)
class Input:
    """A turn to come and what the user says in it."""

    turn: Turn
    item: Item


@dataclass(frozen=True, slots=True)
class Cancelled:
    """What a cancellation found: the turn that runs, and those that waited and are over now."""

    running: Turn | None
    queued: tuple[Turn, ...]


class SessionStore:
    """Sessions on disk. Methods that change something return when it is on disk."""

    def __init__(
        self, database: Database, publish: Publish, clock: Clock, leases: Leases | None = None
    ) -> None:
        self._database = database
        self._publish = publish
        self._clock = clock
        self._leases = leases or Leases(database)

    async def create(
        self, session: Session, first: Input | None, request: RequestId | None
    ) -> tuple[str, str]:
        """Keep a new session with its first input; returns its id and the first turn's.

        A repeated request returns the session that the first one made. Errors:
        `RequestIdReused`.
        """

        def operation(connection: Connection) -> tuple[tuple[str, str], tuple[Event, ...]]:
            known = find_answered(connection, request)
            if known is not None:
                return (known, conversation.first_turn_id(connection, known)), ()
            rows.insert_session(connection, session)
            remember(connection, request, session.id, session.id)
            drafts = [
                Draft(EventKind.SESSION_CREATED, SessionError()),
                Draft(EventKind.ENVIRONMENT_PENDING, session.environment),
            ]
            if first is not None:
                drafts += self._enqueue(connection, session.project_id, first)
                drafts.append(Draft(EventKind.SESSION_IN_PROGRESS, SessionError()))
                log.set_state(connection, session.id, SessionState.IN_PROGRESS)
            appended = log.append(connection, session.id, drafts, self._clock())
            return (session.id, first.turn.id if first else ""), appended

        return await self._write(session.id, operation)

    async def update(
        self,
        session_id: str,
        change: Callable[[Agent], Agent],
        metadata: Mapping[str, str] | None,
    ) -> None:
        """Change a session's agent and, unless None, its metadata.

        `change` touches nothing else. Errors: `SessionNotFound`, and those of `change`.
        """

        def operation(connection: Connection) -> None:
            rows.session_head(connection, session_id, lock=True)
            rows.update_session(connection, session_id, change, metadata)

        await self._database.write(operation, about=session_id)

    async def submit(
        self, session_id: str, arriving: Input, request: RequestId | None, *, limit: int
    ) -> Turn:
        """Queue an input. A repeated request returns the turn that the first one made.

        Errors: `SessionNotFound`, `SessionFailed`, `QueueFull`, `RequestIdReused`.
        """

        def operation(connection: Connection) -> tuple[Turn, tuple[Event, ...]]:
            head = rows.session_head(connection, session_id, lock=True)
            known = find_answered(connection, request)
            if known is not None:
                return conversation.turn(connection, known).turn, ()
            if head.state is SessionState.FAILED:
                raise SessionFailed(session_id, head.error)
            if len(conversation.turns_in(connection, session_id, TurnState.QUEUED)) >= limit:
                raise QueueFull(session_id, limit)
            remember(connection, request, arriving.turn.id, session_id)
            drafts = self._enqueue(connection, head.project_id, arriving)
            if head.state is SessionState.IDLE:
                drafts.append(Draft(EventKind.SESSION_IN_PROGRESS, SessionError()))
                log.set_state(connection, session_id, SessionState.IN_PROGRESS)
            return arriving.turn, log.append(connection, session_id, drafts, self._clock())

        return await self._write(session_id, operation)

    async def begin_turn(self, session_id: str) -> TurnProgress | None:
        """The turn to work on: the one in progress, else the first that waits, begun now.

        The session is held from now on. Errors: `SessionNotFound`; `LeaseLost` when another
        orchestrator holds it.
        """

        def operation(connection: Connection) -> tuple[TurnProgress | None, tuple[Event, ...]]:
            lease = self._leases.take(connection, session_id)
            running = conversation.turns_in(connection, session_id, TurnState.IN_PROGRESS)
            if running:
                return replace(running[0], lease=lease), ()
            waiting = conversation.turns_in(connection, session_id, TurnState.QUEUED)
            if not waiting:
                give_back(connection, session_id, lease)
                return None, ()
            now = self._clock()
            turn = replace(waiting[0].turn, state=TurnState.IN_PROGRESS, start_time=now)
            begun = replace(waiting[0], turn=turn, stage=Stage.PREPARING, lease=lease)
            conversation.update_turn(connection, begun)
            draft = Draft(EventKind.TURN_IN_PROGRESS, turn, turn.id)
            return begun, log.append(connection, session_id, [draft], now)

        return await self._write(session_id, operation)

    async def hold(self, session_id: str) -> int:
        """Hold a session on which work is to be done that is no turn; returns the lease.

        Errors: `SessionNotFound`; `LeaseLost` when another orchestrator holds it.
        """
        return await self._database.write(lambda c: self._leases.take(c, session_id))

    async def record(self, change: Change) -> None:
        """Write a step.

        Errors: `SessionNotFound` when the session was deleted meanwhile; `LeaseLost`.
        """

        def operation(connection: Connection) -> tuple[None, tuple[Event, ...]]:
            return None, self._apply(connection, change, change.drafts)

        await self._write(change.session_id, operation)

    async def end_turn(
        self,
        change: Change,
        turn_id: str,
        state: TurnState,
        error: TurnError | None = None,
        *,
        failure: str = "",
        open_ends: str = "",
    ) -> None:
        """Write a turn's last step and end it; the session is idle then unless turns wait.

        With `failure` the session has failed, and what waits fails with it. Items that are open
        still are closed as incomplete; commands among them get `open_ends` as their outcome. A
        turn that has ended already stays as it is.
        """

        def operation(connection: Connection) -> tuple[None, tuple[Event, ...]]:
            now = self._clock()
            rows.session_head(connection, change.session_id, lock=True)
            current = conversation.turn(connection, turn_id)
            if current.turn.state.is_final:
                return None, ()
            turn = replace(current.turn, state=state, error=error, end_time=now)
            conversation.update_turn(connection, replace(current, turn=turn, stage=Stage.ENDED))
            drafts = list(change.drafts)
            for item in conversation.open_items(connection, turn_id):
                closed = conversation.closed(item, open_ends, now)
                conversation.update_item(connection, closed)
                drafts.append(Draft(EventKind.ITEM_DONE, closed, turn.id))
            drafts.append(Draft(_ENDINGS[turn.state], turn, turn.id))
            drafts += self._after_turn(connection, change.session_id, failure, now)
            return None, self._apply(connection, change, drafts)

        await self._write(change.session_id, operation)

    async def request_cancel(self, session_id: str) -> Cancelled:
        """Cancel what waits and mark what runs. Errors: `SessionNotFound`."""

        def operation(connection: Connection) -> tuple[Cancelled, tuple[Event, ...]]:
            rows.session_head(connection, session_id, lock=True)
            now = self._clock()
            queued = [
                self._end_unbegun(connection, waiting, TurnState.CANCELLED, now)
                for waiting in conversation.turns_in(connection, session_id, TurnState.QUEUED)
            ]
            drafts = [Draft(EventKind.TURN_CANCELLED, turn, turn.id) for turn in queued]
            running = conversation.turns_in(connection, session_id, TurnState.IN_PROGRESS)
            for progress in running:
                conversation.update_turn(connection, replace(progress, cancel_requested=True))
            if queued and not running:
                drafts += self._after_turn(connection, session_id, "", now)
            found = Cancelled(running[0].turn if running else None, tuple(queued))
            return found, log.append(connection, session_id, drafts, now) if drafts else ()

        return await self._write(session_id, operation)

    async def fail(self, change: Change, error: str) -> None:
        """Write that a session without a running turn cannot go on; what waits fails with it."""

        def operation(connection: Connection) -> tuple[None, tuple[Event, ...]]:
            rows.session_head(connection, change.session_id, lock=True)
            drafts = list(change.drafts)
            drafts += self._after_turn(connection, change.session_id, error, self._clock())
            return None, self._apply(connection, change, drafts)

        await self._write(change.session_id, operation)

    async def suspend(self, environment_id: str) -> None:
        """Write that an environment's container sleeps, unless a turn is about to use it."""

        def operation(connection: Connection) -> tuple[None, tuple[Event, ...]]:
            found = rows.find_environment(connection, environment_id)
            if found is None:
                return None, ()
            head = rows.session_head(connection, found.session_id, lock=True)
            environment = rows.find_environment(connection, environment_id) or found
            ready = environment.state is EnvironmentState.READY
            if not ready or head.state is not SessionState.IDLE:
                return None, ()
            asleep = replace(environment, state=EnvironmentState.SUSPENDED)
            rows.update_environment(connection, asleep)
            draft = Draft(EventKind.ENVIRONMENT_SUSPENDED, asleep)
            return None, log.append(connection, asleep.session_id, [draft], self._clock())

        await self._write("", operation)

    async def delete(self, session_id: str) -> bool:
        """Forget a session and all that is in it; says whether there was one."""
        return await self._database.write(
            lambda c: rows.delete_session(c, session_id), about=session_id
        )

    async def _write(self, session_id: str, operation: Operation[tuple[T, tuple[Event, ...]]]) -> T:
        result, _ = await self._database.write(
            operation,
            lambda written: self._publish(written[1]) if written[1] else None,
            about=session_id,
        )
        return result

    def _enqueue(self, connection: Connection, project_id: str, arriving: Input) -> list[Draft]:
        turn, item = arriving.turn, arriving.item
        conversation.insert_turn(connection, TurnProgress(turn, project_id))
        conversation.insert_items(connection, project_id, [item])
        return [
            Draft(EventKind.TURN_CREATED, turn, turn.id),
            Draft(EventKind.ITEM_ADDED, item, turn.id),
        ]

    def _apply(
        self, connection: Connection, change: Change, drafts: Sequence[Draft]
    ) -> tuple[Event, ...]:
        appended = log.append(
            connection, change.session_id, drafts, self._clock(), change.usage, change.lease
        )
        project_id = change.project_id
        if change.added:
            conversation.insert_items(connection, project_id, change.added)
        for item in change.changed:
            conversation.update_item(connection, item)
        if change.progress is not None:
            conversation.update_turn(connection, change.progress)
        if change.environment is not None:
            rows.update_environment(connection, change.environment)
        if change.artifacts:
            conversation.insert_artifacts(connection, project_id, change.artifacts)
        return appended

    def _end_unbegun(
        self, connection: Connection, waiting: TurnProgress, state: TurnState, now: datetime
    ) -> Turn:
        turn = replace(waiting.turn, state=state, end_time=now)
        conversation.update_turn(connection, replace(waiting, turn=turn, stage=Stage.ENDED))
        return turn

    def _after_turn(
        self, connection: Connection, session_id: str, failure: str, now: datetime
    ) -> list[Draft]:
        waiting = conversation.turns_in(connection, session_id, TurnState.QUEUED)
        if not failure:
            if waiting:
                return []
            log.set_state(connection, session_id, SessionState.IDLE)
            return [Draft(EventKind.SESSION_IDLE, SessionError())]
        drafts = []
        for progress in waiting:
            failed = conversation.with_error(progress, "sandbox_error", failure)
            turn = self._end_unbegun(connection, failed, TurnState.FAILED, now)
            drafts.append(Draft(EventKind.TURN_FAILED, turn, turn.id))
        log.set_state(connection, session_id, SessionState.FAILED, failure)
        drafts.append(Draft(EventKind.SESSION_FAILED, SessionError(failure)))
        return drafts


_ENDINGS = {
    TurnState.COMPLETED: EventKind.TURN_COMPLETED,
    TurnState.FAILED: EventKind.TURN_FAILED,
    TurnState.CANCELLED: EventKind.TURN_CANCELLED,
}
