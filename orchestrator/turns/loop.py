"""Owns the agent loop: which stage follows which, and how a turn ends.

    preparing -> thinking -> acting -> thinking -> ... -> publishing -> ended

What a stage did is on disk before the next begins, so a turn goes on where it was, whoever goes
on with it: a model call without a recorded answer is made again, a command with a recorded item
is followed by its execution id, artifacts are written over.
"""

import asyncio
from contextlib import aclosing
from dataclasses import dataclass, replace
from datetime import timedelta

import structlog

from orchestrator.errors import (
    DatabaseUnavailable,
    LeaseLost,
    SessionNotFound,
    TurnNotFound,
)
from orchestrator.models.model import FinishReason
from orchestrator.records import (
    AssistantMessage,
    CommandExecution,
    EnvironmentState,
    EventKind,
    ItemState,
    Phase,
    Stage,
    TurnError,
    TurnState,
)
from orchestrator.store.log import Draft
from orchestrator.store.sessions import Change, SessionStore
from orchestrator.turns.acting import Acting
from orchestrator.turns.answer import Answer
from orchestrator.turns.environment import ENDS, SessionEnvironments
from orchestrator.turns.failures import Failure, TurnFailed, first_of, understand
from orchestrator.turns.journal import Journal
from orchestrator.turns.ports import Assemble, Models
from workroom.errors import WorkroomError

log = structlog.get_logger(__name__)

CALL_OFF_TIME = timedelta(seconds=45)
"""How long the end of a turn waits for the end of its commands."""


@dataclass(frozen=True, slots=True)
class TurnLimits:
    """How far one turn may go."""

    steps: int = 100
    time: timedelta = timedelta(hours=6)


class TurnLoop:
    """Brings turns to their end."""

    def __init__(
        self,
        store: SessionStore,
        models: Models,
        assemble: Assemble,
        acting: Acting,
        environments: SessionEnvironments,
        limits: TurnLimits,
    ) -> None:
        self._store = store
        self._models = models
        self._assemble = assemble
        self._acting = acting
        self._environments = environments
        self._limits = limits

    async def run(self, journal: Journal) -> None:
        """Go on with a turn until it has ended, however it ends.

        Returns early when the session was deleted meanwhile. Cancelled, it leaves the turn as it
        is, to be gone on with by another call or ended by `cancel`.

        Errors: `LeaseLost`, `DatabaseUnavailable`: the turn is left as it is, for whoever holds
        the session next.
        """
        try:
            async with asyncio.timeout(self._time_left(journal).total_seconds()) as time:
                await self._advance(journal)
        except (Exception, ExceptionGroup) as error:
            match first_of(error):
                case SessionNotFound() | TurnNotFound():
                    return
                case (LeaseLost() | DatabaseUnavailable()) as elsewhere:
                    raise elsewhere from error
            if isinstance(error, TimeoutError) and time.expired():
                error = TurnFailed(
                    "request_timeout", f"the turn took longer than {self._limits.time}"
                )
            await self._fail(journal, error)

    async def cancel(self, journal: Journal) -> None:
        """End a turn that is not worked on any more, with its commands."""
        await self._call_off(journal)
        await self._store.end_turn(
            _ending(journal), journal.turn_id, TurnState.CANCELLED, open_ends="cancelled"
        )

    async def _advance(self, journal: Journal) -> None:
        while journal.stage is not Stage.ENDED:
            match journal.stage:
                case Stage.THINKING:
                    await self._think(journal)
                case Stage.ACTING:
                    await self._acting.act(journal)
                    journal.turn_to(Stage.THINKING)
                case Stage.PUBLISHING:
                    await self._publish(journal)
                    journal.turn_to(Stage.ENDED)
                case _:
                    await self._prepare(journal)

    async def _prepare(self, journal: Journal) -> None:
        state = journal.session.environment.state
        if state is EnvironmentState.PENDING:
            environment = await self._environments.prepare(journal.session)
        else:
            await self._environments.rejoin(journal.session)
            if state is not EnvironmentState.SUSPENDED:
                journal.turn_to(Stage.THINKING)
                return
            environment = replace(journal.session.environment, state=EnvironmentState.READY)
        await journal.record(
            environment=environment,
            drafts=[Draft(EventKind.ENVIRONMENT_READY, environment)],
            progress=replace(journal.progress, stage=Stage.THINKING),
        )

    async def _think(self, journal: Journal) -> None:
        step = journal.progress.step
        if step >= self._limits.steps:
            raise TurnFailed(
                "step_limit_exceeded",
                f"the agent has taken {step} steps, as many as a turn may have; "
                "give it another input to go on",
            )
        session = journal.session
        model, name = self._models.choose(session.agent)
        request = self._assemble(
            session, session.agent, session.environment.data_map or "", journal.items()
        )
        answer = Answer(journal)
        answer.begin()
        async with aclosing(model.stream(replace(request, model=name, turn_step=step))) as events:
            async for event in events:
                await answer.take(event)
        finish = await answer.record()
        if journal.stage is Stage.PUBLISHING:
            _check_finish(finish)

    async def _publish(self, journal: Journal) -> None:
        if any(
            item.state is ItemState.INCOMPLETE
            and isinstance(item.content, AssistantMessage)
            and item.content.phase is Phase.FINAL_ANSWER
            for item in journal.own_items()
        ):
            raise TurnFailed("max_output_tokens", "the model's answer was cut short")
        worked = any(isinstance(item.content, CommandExecution) for item in journal.items())
        artifacts = await self._environments.fetch_outputs(journal) if worked else ()
        drafts = [
            Draft(EventKind.ARTIFACT_PUBLISHED, artifact, journal.turn_id) for artifact in artifacts
        ]
        change = replace(_ending(journal), artifacts=artifacts, drafts=tuple(drafts))
        await self._store.end_turn(change, journal.turn_id, TurnState.COMPLETED)

    async def _fail(self, journal: Journal, error: BaseException) -> None:
        failure = understand(error)
        if failure is None:
            log.error("turn failed", turn_id=journal.turn_id, exc_info=error)
            failure = Failure(TurnError("internal_error", "internal error; the log has details"))
        await self._call_off(journal)
        change = _ending(journal)
        if failure.environment is not None:
            environment = replace(
                journal.session.environment,
                state=failure.environment,
                error=failure.error.message,
            )
            draft = Draft(ENDS[failure.environment], environment)
            change = replace(change, environment=environment, drafts=(draft,))
        try:
            await self._store.end_turn(
                change,
                journal.turn_id,
                TurnState.FAILED,
                failure.error,
                failure=failure.error.message if failure.environment is not None else "",
                open_ends="the turn failed before the command had ended",
            )
        except (SessionNotFound, TurnNotFound):
            return

    async def _call_off(self, journal: Journal) -> None:
        try:
            async with asyncio.timeout(CALL_OFF_TIME.total_seconds()):
                await self._acting.call_off(journal)
        except (WorkroomError, TimeoutError) as error:
            log.warning("commands go on", turn_id=journal.turn_id, detail=str(error))

    def _time_left(self, journal: Journal) -> timedelta:
        start = journal.progress.turn.start_time or journal.now()
        return self._limits.time - (journal.now() - start)


def _ending(journal: Journal) -> Change:
    return Change(journal.session.id, journal.session.project_id, lease=journal.progress.lease)


def _check_finish(finish: FinishReason) -> None:
    if finish is FinishReason.LENGTH:
        raise TurnFailed(
            "max_output_tokens", "the model's answer was cut off at its limit of output tokens"
        )
    if finish is FinishReason.CONTENT_FILTER:
        raise TurnFailed("content_filter", "the model server withheld the answer")
