"""Owns where a container's image comes from: the engine has it or pulls it, or it is one of ours
and is built when it is first asked for."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta

import structlog

from container_runtime.engine import Engine, Image
from container_runtime.errors import ImageNotFound
from container_runtime.image.recipe import FILES
from workroom.errors import WorkroomError

log = structlog.get_logger(__name__)

PULL_LIMIT = timedelta(minutes=5)

Build = Callable[[str], Awaitable[None]]
"""Builds one of our own images, by its name. Raises `WorkroomError`."""


class Images:
    """Images by the names that callers use. Belongs to one event loop; builds run in `tasks`."""

    def __init__(self, engine: Engine, tasks: asyncio.TaskGroup, build: Build | None) -> None:
        """Without `build`, our own images are only those that the engine has."""
        self._engine = engine
        self._tasks = tasks
        self._build = build
        self._building: dict[str, asyncio.Task[WorkroomError | None]] = {}

    async def get(self, name: str) -> Image:
        """The image called `name`. One of ours that is not there is built, which takes minutes;
        all who ask meanwhile wait for the one build, and it goes on when they leave.

        Raises `ImageNotFound`, `EngineUnavailable`, and what the build does.
        """
        try:
            return await self.find(name)
        except ImageNotFound:
            if self._build is None or name not in FILES:
                raise
        await self._built(name, self._build)
        return await self.find(name)

    async def find(self, name: str) -> Image:
        """As `get`, but nothing is built."""
        return await self._engine.image(name, PULL_LIMIT)

    async def _built(self, name: str, build: Build) -> None:
        task = self._building.get(name)
        if task is None:
            task = self._tasks.create_task(self._outcome(name, build))
            self._building[name] = task
        failed = await asyncio.shield(task)
        if failed is not None:
            raise failed

    async def _outcome(self, name: str, build: Build) -> WorkroomError | None:
        log.info("image being built", image=name)
        try:
            await build(name)
        except WorkroomError as error:
            log.warning("image not built", image=name, problem=error.message)
            return error
        finally:
            del self._building[name]
        log.info("image built", image=name)
        return None
