"""Owns what happened to containers: a numbered log of bounded length that survives this process.

Knows neither containers as they live nor the transport.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

import sqlalchemy as sa

from container_runtime.codec import instant
from container_runtime.errors import EventsGone
from container_runtime.limits import EVENTS_KEPT
from container_runtime.store import Store


class EventKind(StrEnum):
    """What happened."""

    CREATED = "created"
    ACTIVE = "active"
    SUSPENDED = "suspended"
    RESUMED = "resumed"
    FAILED = "failed"
    DELETED = "deleted"


@dataclass(frozen=True, slots=True)
class ContainerEvent:
    """One thing that happened to one container."""

    sequence: int
    """Counts up by one, over all containers of the node."""
    when: datetime
    container_id: str
    project_id: str
    kind: EventKind
    message: str = ""
    """Why, where there is more to say."""


_metadata = sa.MetaData()
_events = sa.Table(
    "container_events",
    _metadata,
    sa.Column("sequence", sa.Integer, primary_key=True),
    sa.Column("time", sa.Float, nullable=False),
    sa.Column("container_id", sa.String, nullable=False),
    sa.Column("project_id", sa.String, nullable=False),
    sa.Column("kind", sa.String, nullable=False),
    sa.Column("message", sa.Text, nullable=False),
)


class Events:
    """The log. Belongs to one event loop. Use `opened`."""

    def __init__(self, store: Store, kept: int) -> None:
        self._store = store
        self._kept: deque[ContainerEvent] = deque(maxlen=kept)
        self._last = 0
        self._turn = asyncio.Lock()
        self._news = asyncio.Event()

    @classmethod
    async def opened(cls, store: Store, kept: int = EVENTS_KEPT) -> "Events":
        """The log as an earlier process left it."""
        events = cls(store, kept)
        for event in await store.in_transaction(lambda connection: _load(connection, kept)):
            events._kept.append(event)
            events._last = event.sequence
        return events

    @property
    def last(self) -> int:
        """The number of the newest event; 0 when there was none."""
        return self._last

    async def record(
        self,
        when: datetime,
        container_id: str,
        project_id: str,
        kinds: Sequence[EventKind],
        message: str = "",
    ) -> None:
        """Remember events, and then tell watchers."""
        async with self._turn:
            new = [
                ContainerEvent(number, when, container_id, project_id, kind, message)
                for number, kind in enumerate(kinds, self._last + 1)
            ]
            gone = self._last + len(new) - (self._kept.maxlen or 0)
            await self._store.in_transaction(lambda connection: _save(connection, new, gone))
            self._kept.extend(new)
            self._last += len(new)
            self._news.set()
            self._news = asyncio.Event()

    async def next(self, after: int) -> ContainerEvent:
        """The event behind number `after`, when it comes; behind 0, the oldest that is kept.
        Raises `EventsGone` when it is not kept any more, or `after` is past the newest."""
        if after > self._last:
            raise self._gone(after)
        while after == self._last:
            await self._news.wait()
        first = self._kept[0].sequence
        if after and after + 1 < first:
            raise self._gone(after)
        return self._kept[max(after + 1 - first, 0)]

    def _gone(self, after: int) -> EventsGone:
        first = self._kept[0].sequence if self._kept else self._last + 1
        return EventsGone(
            f"events behind {after} cannot be had, those from {first} to {self._last} can: "
            "list the containers and watch from there",
            after_sequence=str(after),
            first_sequence=str(first),
            last_sequence=str(self._last),
        )


def _load(connection: sa.Connection, kept: int) -> list[ContainerEvent]:
    _metadata.create_all(connection)
    newest = sa.select(_events).order_by(_events.c.sequence.desc()).limit(kept)
    return [
        ContainerEvent(
            row.sequence,
            instant(row.time),
            row.container_id,
            row.project_id,
            EventKind(row.kind),
            row.message,
        )
        for row in reversed(connection.execute(newest).all())
    ]


def _save(connection: sa.Connection, events: Sequence[ContainerEvent], gone: int) -> None:
    rows = [
        {
            "sequence": event.sequence,
            "time": event.when.timestamp(),
            "container_id": event.container_id,
            "project_id": event.project_id,
            "kind": event.kind,
            "message": event.message,
        }
        for event in events
    ]
    connection.execute(sa.insert(_events), rows)
    connection.execute(sa.delete(_events).where(_events.c.sequence <= gone))
