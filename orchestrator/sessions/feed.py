"""Owns how events reach those who watch at the moment; what is durable is the store's.

A watcher takes what it hears from a bounded backlog. One that falls behind loses the backlog and
reads the durable part of what it missed from the store; live events that are lost are gone.
"""

import asyncio
from collections import defaultdict, deque
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime

from orchestrator.errors import SequenceOutOfRange
from orchestrator.records import (
    CommandOutputDelta,
    Event,
    EventKind,
    Item,
    Payload,
    Session,
    SessionState,
    TextDelta,
    TextRestarted,
)
from orchestrator.store.reading import SessionReader
from workroom.errors import InvalidField

BACKLOG_EVENTS = 512
"""Events that wait for one watcher."""
BACKLOG_CHARS = 4 * 1024 * 1024
"""Characters of live text that wait for one watcher."""
PAGE_EVENTS = 64
"""Events read from the store at a time."""

_RESTING = {EventKind.SESSION_IDLE, EventKind.SESSION_FAILED}
_WORKING = {EventKind.SESSION_IN_PROGRESS, EventKind.TURN_CREATED, EventKind.TURN_IN_PROGRESS}

LivePayload = TextDelta | TextRestarted | CommandOutputDelta


class Backlog:
    """What one watcher has not taken yet."""

    def __init__(self, incomplete: set[str]) -> None:
        self._events: deque[Event] = deque()
        self._chars = 0
        self._arrived = asyncio.Event()
        self._incomplete = incomplete
        self.overflowed = False
        self.closed = False
        self._stale = False

    def put(self, event: Event) -> None:
        if not self.overflowed:
            self._events.append(event)
            self._chars += _size(event.payload)
            if len(self._events) > BACKLOG_EVENTS or self._chars > BACKLOG_CHARS:
                self._overflow()
        else:
            self.lose(event)
        self._arrived.set()

    async def take(self) -> Event | None:
        """The next event; None when there is none to come, or the store is to be read again."""
        while not self._events or self._stale:
            if self.closed or self.overflowed or self._stale:
                return None
            self._arrived.clear()
            await self._arrived.wait()
        event = self._events.popleft()
        self._chars -= _size(event.payload)
        return event

    def begin_again(self) -> None:
        """Collect from here on: what comes before is read from the store."""
        self.overflowed = self._stale = False

    def look_again(self) -> None:
        """There is more in the store than was put here."""
        self._stale = True
        self._arrived.set()

    def close(self) -> None:
        self.closed = True
        self._arrived.set()

    def lose(self, event: Event) -> None:
        """Remember that a live event did not reach the watcher."""
        if isinstance(event.payload, CommandOutputDelta):
            self._incomplete.add(event.payload.item_id)

    def marked(self, event: Event) -> Event:
        """The event, saying so where output before it was lost."""
        payload = event.payload
        if isinstance(payload, CommandOutputDelta) and payload.item_id in self._incomplete:
            self._incomplete.discard(payload.item_id)
            return replace(event, payload=replace(payload, after_gap=True))
        return event

    def _overflow(self) -> None:
        for lost in self._events:
            self.lose(lost)
        self._events.clear()
        self._chars = 0
        self.overflowed = True


class Feed:
    """Who watches one session. `last` is the newest durable event that is known of.

    `resting` says whether the session has nothing to do as of `last`.
    """

    def __init__(self, session_id: str, speaking: set[str]) -> None:
        self.session_id = session_id
        self.last = 0
        self.resting = False
        self._speaking = speaking
        self._backlogs: set[Backlog] = set()

    @property
    def is_watched(self) -> bool:
        return bool(self._backlogs)

    def settle(self, session: Session) -> bool:
        """Take over what the store says; false when it is older than what was heard already."""
        if session.last_sequence_number < self.last:
            return False
        self.last = session.last_sequence_number
        self.resting = session.state is not SessionState.IN_PROGRESS
        return True

    def publish(self, event: Event) -> None:
        if event.sequence_number > self.last:
            self.last = event.sequence_number
            if event.kind in _RESTING:
                self.resting = True
            elif event.kind in _WORKING:
                self.resting = False
        for backlog in self._backlogs:
            backlog.put(event)

    def catch_up(self, session: Session) -> None:
        """Have the watchers read what another orchestrator has written."""
        if session.last_sequence_number > self.last and self.settle(session):
            for backlog in self._backlogs:
                backlog.look_again()

    def close(self) -> None:
        for backlog in self._backlogs:
            backlog.close()

    @contextmanager
    def watched(self) -> Iterator[Backlog]:
        backlog = Backlog(set(self._speaking))
        self._backlogs.add(backlog)
        try:
            yield backlog
        finally:
            self._backlogs.discard(backlog)


class Feeds:
    """The feeds of all sessions that are watched."""

    def __init__(self, clock: Callable[[], datetime]) -> None:
        self._clock = clock
        self._feeds: dict[str, Feed] = {}
        self._speaking: defaultdict[str, set[str]] = defaultdict(set)
        """Commands that have said something, so that who comes later knows to have missed it."""

    def publish(self, events: Sequence[Event]) -> None:
        """Tell those who watch. Called in the order in which events became durable."""
        for event in events:
            if event.kind is EventKind.ITEM_DONE and isinstance(event.payload, Item):
                self._fall_silent(event.session_id, event.payload.id)
            feed = self._feeds.get(event.session_id)
            if feed is not None:
                feed.publish(event)

    def say(self, session_id: str, turn_id: str, kind: EventKind, payload: LivePayload) -> None:
        """Tell those who watch something that is not kept."""
        if isinstance(payload, CommandOutputDelta):
            self._speaking[session_id].add(payload.item_id)
        feed = self._feeds.get(session_id)
        if feed is not None:
            feed.publish(
                Event(
                    session_id=session_id,
                    kind=kind,
                    payload=payload,
                    create_time=self._clock(),
                    turn_id=turn_id,
                    after_sequence_number=feed.last,
                )
            )

    def watched(self) -> Sequence[str]:
        """The sessions that somebody watches."""
        return tuple(self._feeds)

    def catch_up(self, session: Session) -> None:
        """Another orchestrator may have written something: tell those who watch."""
        feed = self._feeds.get(session.id)
        if feed is not None:
            feed.catch_up(session)

    def close(self, session_id: str) -> None:
        """End every watch of a session that is no more."""
        self._speaking.pop(session_id, None)
        feed = self._feeds.pop(session_id, None)
        if feed is not None:
            feed.close()

    async def watch(
        self,
        reader: SessionReader,
        session_id: str,
        after: int,
        *,
        until_idle: bool,
        durable_only: bool,
    ) -> AsyncGenerator[Event, None]:
        """The session's events that follow number `after`, without an end of its own.

        It ends when the session is deleted and, with `until_idle`, once everything was told of a
        session that has nothing to do. Errors: `SessionNotFound`,
        `SequenceOutOfRange`, `InvalidField`.
        """
        with self._feed(session_id) as feed, feed.watched() as backlog:
            while not feed.settle(await reader.get(session_id)):
                pass
            if after < 0:
                raise InvalidField("after_sequence_number", "must not be negative")
            if after > feed.last:
                raise SequenceOutOfRange(after, feed.last)
            cursor = after
            while True:
                backlog.begin_again()
                while page := await reader.events_after(session_id, cursor, PAGE_EVENTS):
                    for event in page:
                        cursor = event.sequence_number
                        yield event
                while True:
                    if until_idle and feed.resting and cursor >= feed.last:
                        return
                    taken = await backlog.take()
                    if taken is None:
                        break
                    if taken.is_durable:
                        if taken.sequence_number <= cursor:
                            continue
                        if taken.sequence_number > cursor + 1:
                            break
                        cursor = taken.sequence_number
                        yield taken
                    elif taken.after_sequence_number != cursor:
                        backlog.lose(taken)
                    elif not durable_only:
                        yield backlog.marked(taken)
                if backlog.closed:
                    return

    @contextmanager
    def _feed(self, session_id: str) -> Iterator[Feed]:
        feed = self._feeds.get(session_id)
        if feed is None:
            feed = self._feeds[session_id] = Feed(session_id, self._speaking[session_id])
        try:
            yield feed
        finally:
            if not feed.is_watched and self._feeds.get(session_id) is feed:
                del self._feeds[session_id]
                self._fall_silent(session_id, "")

    def _fall_silent(self, session_id: str, item_id: str) -> None:
        speaking = self._speaking.get(session_id)
        if speaking is not None:
            speaking.discard(item_id)
            if not speaking and session_id not in self._feeds:
                del self._speaking[session_id]


def _size(payload: Payload) -> int:
    return len(payload.delta) if isinstance(payload, TextDelta | CommandOutputDelta) else 0
