"""Owns one container as it lives: its record, its link, and who is changing it."""

import asyncio
from dataclasses import replace
from datetime import datetime

from container_runtime.link import Link
from container_runtime.records import ALLOWED, ContainerRecord, ContainerState


class Container:
    """Belongs to one event loop's thread."""

    def __init__(self, record: ContainerRecord) -> None:
        self.record = record
        self.saved = record
        """What the store has of it."""
        self.link: Link | None = None
        self.making: asyncio.Task[Exception | None] | None = None
        self.deleting: asyncio.Task[Exception | None] | None = None

    @property
    def id(self) -> str:
        """Its id."""
        return self.record.id

    @property
    def state(self) -> ContainerState:
        """Where it is in its life."""
        return self.record.state

    def become(self, state: ContainerState, *, failure: str = "") -> None:
        """Move on. ValueError for a step that life does not have."""
        if state not in ALLOWED[self.state]:
            raise ValueError(f"container {self.id} cannot go from {self.state} to {state}")
        self.record = replace(self.record, state=state, failure=failure)

    def touch(self, when: datetime) -> None:
        """Something happened in it."""
        self.record = replace(self.record, last_active=when)
