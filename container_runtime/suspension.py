"""Owns how a container is put to sleep with its file system kept, and how it wakes up."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import datetime

import structlog

from container_runtime.container import Container
from container_runtime.creation import Maker
from container_runtime.errors import ContainerBusy, ContainerGone, ContainerNotActive
from container_runtime.events import EventKind
from container_runtime.executions import Executions
from container_runtime.model import LostReason
from container_runtime.records import ContainerState
from workroom.errors import WorkroomError

log = structlog.get_logger(__name__)


class Suspension:
    """Suspends and resumes. One change at a time is made to a container; callers share it, and
    one that leaves stops nothing. Belongs to one event loop; tasks live in `tasks`."""

    def __init__(
        self,
        maker: Maker,
        executions: Executions,
        tasks: asyncio.TaskGroup,
        clock: Callable[[], datetime],
        check_room: Callable[[], None],
    ) -> None:
        """`check_room` raises when the node cannot run another container."""
        self._maker = maker
        self._executions = executions
        self._tasks = tasks
        self._clock = clock
        self._check_room = check_room

    async def suspend(self, container: Container, *, force: bool = False) -> None:
        """Suspend a container; one that is suspended is no error. With `force`, commands that run
        in it are ended as lost.

        Raises `ContainerBusy`, `ContainerNotActive`, `EngineUnavailable`, `VolumeFailed`. What
        could not be finished is finished later by `finish`.
        """
        while container.state is not ContainerState.SUSPENDED:
            match container.state:
                case _ if container.changing is not None:
                    await asyncio.wait([container.changing])
                case ContainerState.ACTIVE:
                    busy = self._executions.running_in(container.id)
                    if (busy or container.in_use) and not force:
                        raise ContainerBusy(
                            f"{busy} commands run in container {container.id}",
                            container_id=container.id,
                            running=str(busy),
                        )
                    await self._change(container, self._suspend)
                case ContainerState.SUSPENDING:
                    await self.finish(container)
                case _:
                    raise _not_active(container)

    async def resume(self, container: Container) -> None:
        """Run a suspended container again; one that runs is no error.

        Raises `NodeFull`, `HostDiskFull`, `ContainerNotActive`, `EngineUnavailable`,
        `SupervisorFailed`, `VolumeFailed`; it is then suspended as before.
        """
        while container.state is not ContainerState.ACTIVE:
            match container.state:
                case _ if container.changing is not None:
                    await asyncio.wait([container.changing])
                case ContainerState.SUSPENDED:
                    self._check_room()
                    await self._change(container, self._resume)
                case ContainerState.SUSPENDING:
                    await self.finish(container)
                case _:
                    raise _not_active(container)

    async def interrupt(self, container: Container, problem: str) -> None:
        """Its processes are gone and its file system is not: as if it had been suspended."""
        container.become(ContainerState.SUSPENDING)
        log.warning("container interrupted", container_id=container.id, problem=problem)
        self._executions.explain(container.id, LostReason.INTERRUPTED, problem)
        self._executions.detach(container.id)
        if container.link is not None:
            await self._maker.drain(container.id, container.link)
            container.link = None
        self._executions.end_all(container.id, LostReason.INTERRUPTED, problem)
        await self._maker.save(container)
        try:
            await self.finish(container)
        except WorkroomError as error:
            log.info("suspension to be finished", container_id=container.id, problem=error.message)

    async def finish(self, container: Container) -> None:
        """Finish a suspension that was begun."""
        await self._change(container, self._finish)

    async def _change(
        self, container: Container, work: Callable[[Container], Awaitable[None]]
    ) -> None:
        if container.changing is None:
            container.changing = self._tasks.create_task(_outcome(container, work))
        failed = await asyncio.shield(container.changing)
        if failed is not None:
            raise failed

    async def _suspend(self, container: Container) -> None:
        why = "the container was suspended"
        self._executions.explain(container.id, LostReason.SUSPENDED, why)
        container.become(ContainerState.SUSPENDING)
        self._executions.detach(container.id)
        await self._maker.save(container)
        await self._finish(container)

    async def _finish(self, container: Container) -> None:
        if container.state is not ContainerState.SUSPENDING:
            return
        try:
            await self._maker.halt(container)
        except ContainerGone as error:
            await self._fail(container, error.message)
            return
        self._executions.end_all(container.id, LostReason.SUSPENDED, "the container was suspended")
        since = container.record.suspended or self._clock()
        container.record = replace(container.record, suspended=since)
        container.become(ContainerState.SUSPENDED)
        await self._maker.save(container, EventKind.SUSPENDED)
        log.info("container suspended", container_id=container.id)

    async def _resume(self, container: Container) -> None:
        container.become(ContainerState.RESUMING)
        try:
            await self._maker.save(container)
            await self._maker.resume(container)
        except ContainerGone as error:
            await self._fail(container, error.message)
            raise
        except BaseException:
            container.become(ContainerState.SUSPENDING)
            raise  # `finish` puts it back to sleep
        container.record = replace(container.record, suspended=None)
        container.become(ContainerState.ACTIVE)
        container.touch(self._clock())
        self._maker.attach(container)
        await self._maker.save(container, EventKind.RESUMED)
        log.info("container resumed", container_id=container.id)

    async def _fail(self, container: Container, problem: str) -> None:
        """Its file system is lost."""
        if container.link is not None:
            await container.link.close()
        self._executions.end_all(container.id, LostReason.DIED, problem)
        container.become(ContainerState.FAILED, failure=problem)
        await self._maker.save(container, EventKind.FAILED, message=problem)


async def _outcome(
    container: Container, work: Callable[[Container], Awaitable[None]]
) -> Exception | None:
    try:
        await work(container)
    except Exception as error:
        return error
    finally:
        container.changing = None
    return None


def _not_active(container: Container) -> ContainerNotActive:
    return ContainerNotActive(
        f"container {container.id} is {container.state}",
        container_id=container.id,
        state=container.state,
    )
