"""Owns the runtime's background tasks: one group, which can be told to end."""

import asyncio
from typing import Any


class Tasks(asyncio.TaskGroup):
    """A task group that knows its tasks, so that none outlives the runtime or holds up its end."""

    def __init__(self) -> None:
        super().__init__()
        self._own: set[asyncio.Task[Any]] = set()

    def create_task(self, *args: Any, **kwargs: Any) -> asyncio.Task[Any]:
        """As in any task group."""
        task = super().create_task(*args, **kwargs)
        self._own.add(task)
        task.add_done_callback(self._own.discard)
        return task

    def cancel_all(self) -> None:
        """Tell every task to end."""
        for task in tuple(self._own):
            task.cancel()
