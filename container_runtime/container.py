"""Owns one container as it lives: its record, its link, and who is changing it."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime

from container_runtime.link import Link
from container_runtime.records import ALLOWED, ContainerRecord, ContainerState


class Container:
    """Belongs to one event loop's thread."""

    def __init__(self, record: ContainerRecord) -> None:
        self._record = record
        self.last_active = record.last_active
        self.saved = record
        """What the store has of it."""
        self.link: Link | None = None
        self.making: asyncio.Task[Exception | None] | None = None
        self.deleting: asyncio.Task[Exception | None] | None = None

    @property
    def record(self) -> ContainerRecord:
        """What is known of it now."""
        if self._record.last_active is not self.last_active:
            self._record = replace(self._record, last_active=self.last_active)
        return self._record

    def made(self, engine_id: str, image_environment: Mapping[bytes, bytes]) -> None:
        """The engine has made it."""
        self._record = replace(
            self._record, engine_id=engine_id, image_environment=image_environment
        )

    @property
    def id(self) -> str:
        """Its id."""
        return self._record.id

    @property
    def state(self) -> ContainerState:
        """Where it is in its life."""
        return self._record.state

    def become(self, state: ContainerState, *, failure: str = "") -> None:
        """Move on. ValueError for a step that life does not have."""
        if state not in ALLOWED[self.state]:
            raise ValueError(f"container {self.id} cannot go from {self.state} to {state}")
        self._record = replace(self._record, state=state, failure=failure)

    def touch(self, when: datetime) -> None:
        """Something happened in it."""
        self.last_active = when
