"""Owns a turn as it is worked on: what is recorded of it, and how more is recorded."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import datetime

from orchestrator.records import (
    CommandExecution,
    Environment,
    EventKind,
    Item,
    ItemState,
    Session,
    Stage,
    TurnProgress,
    Usage,
)
from orchestrator.sessions.feed import Feeds, LivePayload
from orchestrator.store.log import Draft
from orchestrator.store.sessions import Change, SessionStore


class Journal:
    """One turn of one session. What it says was recorded is on disk.

    After a cancellation in the middle of `record` it may be behind the disk: it is then not to be
    used any more.
    """

    def __init__(
        self,
        store: SessionStore,
        feeds: Feeds,
        clock: Callable[[], datetime],
        session: Session,
        items: Iterable[Item],
        progress: TurnProgress,
    ) -> None:
        self._store = store
        self._feeds = feeds
        self._clock = clock
        self.session = session
        self.progress = progress
        self._items = {item.id: item for item in items}

    @property
    def turn_id(self) -> str:
        return self.progress.turn.id

    @property
    def container_id(self) -> str:
        return self.session.environment.container_id

    @property
    def stage(self) -> Stage:
        return self.progress.stage

    def now(self) -> datetime:
        return self._clock()

    def items(self) -> tuple[Item, ...]:
        """Everything said and done up to this turn, in the order in which the model gave it.

        Input that waits for its own turn is not among it.
        """
        items = self._items.values()
        turns = {turn: n for n, turn in enumerate(dict.fromkeys(item.turn_id for item in items))}
        heard = [item for item in items if turns[item.turn_id] <= turns[self.turn_id]]
        return tuple(sorted(heard, key=lambda item: (turns[item.turn_id], item.position)))

    def own_items(self) -> tuple[Item, ...]:
        """The items of this turn."""
        return tuple(item for item in self._items.values() if item.turn_id == self.turn_id)

    def open_commands(self) -> tuple[tuple[Item, CommandExecution], ...]:
        """Commands of this turn that have no result yet."""
        return tuple(
            (item, item.content)
            for item in self.own_items()
            if item.state is ItemState.IN_PROGRESS and isinstance(item.content, CommandExecution)
        )

    def say(self, kind: EventKind, payload: LivePayload) -> None:
        """Tell those who watch at the moment."""
        self._feeds.say(self.session.id, self.turn_id, kind, payload)

    async def record(
        self,
        *,
        added: Sequence[Item] = (),
        changed: Sequence[Item] = (),
        drafts: Sequence[Draft] = (),
        progress: TurnProgress | None = None,
        environment: Environment | None = None,
        usage: Usage | None = None,
    ) -> None:
        """Write a step, all or nothing; `usage` is added to what the turn and the session used.

        Errors: `SessionNotFound` when the session was deleted meanwhile; `LeaseLost` when another
        orchestrator works on it.
        """
        session = self.session
        if usage is not None:
            progress = progress or self.progress
            turn = replace(progress.turn, usage=progress.turn.usage + usage)
            progress = replace(progress, turn=turn)
            session = replace(session, usage=session.usage + usage)
        if environment is not None:
            session = replace(session, environment=environment)
        await self._store.record(
            Change(
                session_id=session.id,
                project_id=session.project_id,
                drafts=tuple(drafts),
                added=tuple(added),
                changed=tuple(changed),
                progress=progress,
                environment=environment,
                usage=None if usage is None else session.usage,
                lease=self.progress.lease,
            )
        )
        self.session = replace(self.session, usage=session.usage, environment=session.environment)
        self.progress = progress or self.progress
        self._items.update((item.id, item) for item in (*added, *changed))

    def turn_to(self, stage: Stage) -> None:
        """Go on with a stage that what is recorded already implies."""
        self.progress = replace(self.progress, stage=stage)

    def draft(self, kind: EventKind, item: Item) -> Draft:
        return Draft(kind, item, self.turn_id)
