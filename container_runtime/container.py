"""Owns one container as it lives: its record, its link, and who is changing it."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from container_runtime.link import Link
from container_runtime.records import ALLOWED, ContainerRecord, ContainerState

Change = asyncio.Task[Exception | None]
"""Work on a container that outlives its callers; its result is what went wrong."""


class Container:
    """Belongs to one event loop's thread."""

    def __init__(self, record: ContainerRecord, *, warm: bool = False) -> None:
        self._record = record
        self.last_active = record.last_active
        self.saved = record
        """What the store has of it."""
        self.warm = warm
        """It waits in the pool, belongs to nobody and is not remembered."""
        self.link: Link | None = None
        self.making: Change | None = None
        self.changing: Change | None = None
        """It is being suspended or resumed."""
        self.deleting: Change | None = None
        self.on_lost: Callable[[], None] = _ignored
        """Called when its main process is gone."""
        self.pid = 0
        """Its main process on this host, as last heard of."""
        self.layer: Path | None = None
        """Where on this host lies what was written outside of its volume, if that is known."""
        self.stopped_for = ""
        """Why we are about to kill it, where that makes it fail."""
        self.failed_at = float("-inf")
        """When it failed, in the loop's time."""
        self.left_behind = False
        """It was to be taken apart, and some of it is still there."""
        self._uses = 0

    @property
    def record(self) -> ContainerRecord:
        """What is known of it now."""
        if self._record.last_active is not self.last_active:
            self._record = replace(self._record, last_active=self.last_active)
        return self._record

    @record.setter
    def record(self, record: ContainerRecord) -> None:
        self._record, self.last_active = record, record.last_active

    @property
    def id(self) -> str:
        """Its id."""
        return self._record.id

    @property
    def state(self) -> ContainerState:
        """Where it is in its life."""
        return self._record.state

    @property
    def in_use(self) -> bool:
        """Whether a call that takes its time is at work in it."""
        return self._uses > 0

    @contextmanager
    def using(self) -> Iterator[None]:
        """It counts as used for as long as the body runs."""
        self._uses += 1
        try:
            yield
        finally:
            self._uses -= 1

    def become(self, state: ContainerState, *, failure: str = "") -> None:
        """Move on. ValueError for a step that life does not have."""
        if state not in ALLOWED[self.state]:
            raise ValueError(f"container {self.id} cannot go from {self.state} to {state}")
        self._record = replace(self._record, state=state, failure=failure)

    def touch(self, when: datetime) -> None:
        """Something happened in it."""
        self.last_active = when


def _ignored() -> None:
    pass
