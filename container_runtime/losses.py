"""Owns what becomes of a container whose main process ended without our having asked for that."""

import asyncio
from collections.abc import Iterable

import structlog

from container_runtime.container import Container
from container_runtime.creation import Maker
from container_runtime.events import EventKind
from container_runtime.executions import Executions
from container_runtime.model import LostReason
from container_runtime.records import ContainerState
from container_runtime.suspension import Suspension

log = structlog.get_logger(__name__)

SHUTDOWN_SECONDS = 30.0
"""An engine that goes away may have killed its containers as long before."""
STARTUP_SECONDS = 30.0
"""One that comes back may kill those that it finds for as long."""


class Losses:
    """Fails containers that died, and suspends those that went down with their engine. Belongs to
    one event loop; tasks live in `tasks`."""

    def __init__(
        self,
        maker: Maker,
        executions: Executions,
        suspension: Suspension,
        tasks: asyncio.TaskGroup,
    ) -> None:
        self._maker = maker
        self._executions = executions
        self._suspension = suspension
        self._tasks = tasks
        self._unsteady_until = float("-inf")

    def lost(self, container: Container) -> None:
        """Its main process is gone."""
        if container.state is ContainerState.ACTIVE:
            self._tasks.create_task(self._lost(container))

    async def _lost(self, container: Container) -> None:
        try:
            if container.stopped_for:
                await self.fail(container, container.stopped_for)
                return
            death = await self._maker.death_of(container)
            if container.state is not ContainerState.ACTIVE:
                return
            if death.engine_away or asyncio.get_running_loop().time() < self._unsteady_until:
                await self._suspension.interrupt(container, death.problem)
            else:
                await self.fail(container, death.problem)
        except Exception:
            log.exception("loss of a container not recorded", container_id=container.id)

    async def fail(self, container: Container, problem: str) -> None:
        """Record that a container died without having been deleted."""
        if container.state is not ContainerState.ACTIVE:
            return
        container.become(ContainerState.FAILED, failure=problem)
        container.failed_at = asyncio.get_running_loop().time()
        log.warning("container failed", container_id=container.id, problem=problem)
        self._executions.explain(container.id, LostReason.DIED, problem)
        self._executions.detach(container.id)
        if container.link is not None:
            await self._maker.drain(container.id, container.link)
        self._executions.end_all(container.id, LostReason.DIED, problem)
        await self._maker.save(container, EventKind.FAILED, message=problem)

    async def stop_full(self, container: Container, problem: str) -> None:
        """Stop a container that has written more than it may. Raises `EngineUnavailable`."""
        if container.state is not ContainerState.ACTIVE or container.stopped_for:
            return
        container.stopped_for = problem
        self._executions.explain(container.id, LostReason.DISK_FULL, problem)
        try:
            await self._maker.stop(container)
        except BaseException:
            container.stopped_for = ""
            self._executions.retract(container.id)
            raise
        await self.fail(container, problem)

    async def engine_went_away(self, containers: Iterable[Container]) -> None:
        """What failed just before, did so because the engine was being stopped."""
        self._unsteady_until = float("inf")
        now = asyncio.get_running_loop().time()
        for container in containers:
            recent = now - container.failed_at < SHUTDOWN_SECONDS
            if container.state is ContainerState.FAILED and recent and not container.stopped_for:
                container.failed_at = float("-inf")
                await self._suspension.interrupt(container, "the container engine was stopped")

    def engine_came_back(self) -> None:
        """What dies from now on dies of its own again, after a while."""
        self._unsteady_until = asyncio.get_running_loop().time() + STARTUP_SECONDS
