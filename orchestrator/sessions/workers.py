"""Owns who works on which session: one task for each that has something to do, and its end."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from types import TracebackType
from typing import Self

import structlog

from orchestrator.errors import DatabaseUnavailable, LeaseLost, SessionNotFound, TurnNotFound
from orchestrator.records import (
    EnvironmentState,
    EventKind,
    Item,
    Session,
    SessionState,
    TurnProgress,
)
from orchestrator.sessions.feed import Feeds
from orchestrator.store.log import Draft
from orchestrator.store.reading import SessionReader
from orchestrator.store.sessions import Change, SessionStore
from orchestrator.turns.environment import ENDS, SessionEnvironments
from orchestrator.turns.failures import first_of, understand
from orchestrator.turns.journal import Journal
from orchestrator.turns.loop import TurnLoop
from workroom.errors import WorkroomError

log = structlog.get_logger(__name__)

CANCEL_TIME = timedelta(seconds=60)
"""How long a cancellation waits for what it cancels."""

_LOOK = timedelta(milliseconds=100)
"""How often a cancellation looks whether another orchestrator has carried it out."""


class Workers:
    """The tasks that work on sessions. An async context manager, entered once.

    On leaving, work stops where it is; what is recorded is gone on with at the next start.
    """

    def __init__(
        self,
        store: SessionStore,
        reader: SessionReader,
        feeds: Feeds,
        loop: TurnLoop,
        environments: SessionEnvironments,
        clock: Callable[[], datetime],
    ) -> None:
        self._store = store
        self._reader = reader
        self._feeds = feeds
        self._loop = loop
        self._environments = environments
        self._clock = clock
        self._tasks = asyncio.TaskGroup()
        self._workers: dict[str, _Worker] = {}

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        for session_id in await self._reader.unfinished():
            self.wake(session_id)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for worker in self._workers.values():
            worker.stop()
        await self._tasks.__aexit__(kind, error, trace)

    def wake(self, session_id: str) -> None:
        """There is something to do in a session, or may be."""
        worker = self._workers.get(session_id)
        if worker is not None:
            worker.again = True
            return
        worker = self._workers[session_id] = _Worker(session_id)
        worker.task = self._tasks.create_task(self._work(worker))

    async def interrupt(self, session_id: str, turn_id: str) -> None:
        """Return when a turn whose cancellation is recorded has ended; bounded in time."""
        self.wake(session_id)
        worker = self._workers[session_id]
        worker.interrupt(turn_id)
        try:
            async with asyncio.timeout(CANCEL_TIME.total_seconds()):
                await worker.over(turn_id)
                if worker.elsewhere:
                    await self._ended_elsewhere(turn_id)
        except TurnNotFound:
            log.debug("session is gone", session_id=session_id)
        except TimeoutError:
            log.warning("cancellation goes on", session_id=session_id, turn_id=turn_id)

    def is_busy(self, session_id: str) -> bool:
        """Whether somebody works on a session here."""
        return session_id in self._workers

    def heed(self, session_id: str, turn_id: str) -> None:
        """A cancellation of this turn was recorded elsewhere: carry it out if it runs here."""
        worker = self._workers.get(session_id)
        if worker is not None:
            worker.interrupt(turn_id)

    async def dismiss(self, session_id: str) -> None:
        """Return when nobody works on a session any more."""
        worker = self._workers.get(session_id)
        if worker is not None and worker.task is not None:
            worker.stop()
            await asyncio.wait([worker.task])

    async def _work(self, worker: "_Worker") -> None:
        structlog.contextvars.bind_contextvars(session_id=worker.session_id)
        try:
            await self._work_through(worker)
        except Exception as error:
            match first_of(error):
                case SessionNotFound():
                    log.debug("session is gone")
                case LeaseLost():
                    worker.elsewhere = True
                    log.debug("another orchestrator works on the session")
                case DatabaseUnavailable() as unavailable:
                    log.warning("work on a session stopped", detail=unavailable.message)
                case _:
                    # The turn stays as it is on disk, for the next start.
                    log.exception("work on a session stopped")
        finally:
            worker.finish()
            if self._workers.get(worker.session_id) is worker:
                del self._workers[worker.session_id]

    async def _work_through(self, worker: "_Worker") -> None:
        session = await self._reader.get(worker.session_id)
        items = await self._reader.items(worker.session_id)
        while session.state is not SessionState.FAILED:
            worker.again = False
            progress = await self._store.begin_turn(worker.session_id)
            if progress is not None:
                session, items = await self._run_turn(worker, progress)
            elif session.environment.state is EnvironmentState.PENDING and not worker.prepared:
                worker.prepared = True
                session = await self._prepare(session)
            elif not worker.again:
                # Nothing awaited since the answer came: whoever wakes us from now on finds nobody.
                del self._workers[worker.session_id]
                return

    async def _run_turn(
        self, worker: "_Worker", progress: TurnProgress
    ) -> tuple[Session, tuple[Item, ...]]:
        session = await self._reader.get(worker.session_id)
        items = await self._reader.items(worker.session_id)
        journal = Journal(self._store, self._feeds, self._clock, session, items, progress)
        turn_id = progress.turn.id
        try:
            if not (progress.cancel_requested or worker.is_interrupted(turn_id)):
                async with asyncio.TaskGroup() as tasks:
                    worker.running(turn_id, tasks.create_task(self._loop.run(journal)))
            if progress.cancel_requested or worker.is_interrupted(turn_id):
                # What was recorded last may not be known here: it is read again.
                items = await self._reader.items(worker.session_id)
                session = await self._reader.get(worker.session_id)
                await self._loop.cancel(
                    Journal(self._store, self._feeds, self._clock, session, items, progress)
                )
        finally:
            worker.ended(turn_id)
        return await self._reader.get(worker.session_id), items

    async def _ended_elsewhere(self, turn_id: str) -> None:
        while not (await self._reader.get_turn(turn_id)).state.is_final:  # noqa: ASYNC110
            await asyncio.sleep(_LOOK.total_seconds())

    async def _prepare(self, session: Session) -> Session:
        """Make the environment of a session that has no input yet."""
        lease = await self._store.hold(session.id)
        change = Change(session.id, session.project_id, lease=lease)
        try:
            environment = await self._environments.prepare(session)
        except (WorkroomError, ExceptionGroup) as error:
            failure = understand(error)
            if failure is None or failure.environment is None:
                log.warning("environment is not ready yet", detail=str(error))
                return session
            environment = replace(
                session.environment, state=failure.environment, error=failure.error.message
            )
            draft = Draft(ENDS[failure.environment], environment)
            change = replace(change, environment=environment, drafts=(draft,))
            await self._store.fail(change, failure.error.message)
            return await self._reader.get(session.id)
        draft = Draft(EventKind.ENVIRONMENT_READY, environment)
        await self._store.record(replace(change, environment=environment, drafts=(draft,)))
        return replace(session, environment=environment)


class _Worker:
    """What is known of the task that works on one session."""

    def __init__(self, session_id: str) -> None:
        self.session_id = session_id
        self.task: asyncio.Task[None] | None = None
        self.again = False
        self.prepared = False
        self.elsewhere = False
        self._turn_id = ""
        self._turn: asyncio.Task[None] | None = None
        self._interrupted: set[str] = set()
        self._over: dict[str, asyncio.Event] = {}
        self._finished = False

    def running(self, turn_id: str, turn: asyncio.Task[None]) -> None:
        self._turn_id, self._turn = turn_id, turn

    def interrupt(self, turn_id: str) -> None:
        self._interrupted.add(turn_id)
        if self._turn is not None and self._turn_id == turn_id:
            self._turn.cancel()

    def is_interrupted(self, turn_id: str) -> bool:
        return turn_id in self._interrupted

    def ended(self, turn_id: str) -> None:
        self._turn_id, self._turn = "", None
        self._over.setdefault(turn_id, asyncio.Event()).set()

    async def over(self, turn_id: str) -> None:
        if not self._finished:
            await self._over.setdefault(turn_id, asyncio.Event()).wait()

    def finish(self) -> None:
        """Nobody will end a turn here any more."""
        self._finished = True
        for event in self._over.values():
            event.set()

    def stop(self) -> None:
        if self.task is not None:
            self.task.cancel()
