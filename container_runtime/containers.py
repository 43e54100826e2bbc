"""Owns which containers there are, and when each is made, put to sleep and ended; knows no
transport."""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta

import structlog

from container_runtime.container import Container
from container_runtime.creation import Maker
from container_runtime.disk import Disk
from container_runtime.errors import (
    ContainerNotActive,
    ContainerNotFound,
    RequestIdReused,
)
from container_runtime.executions import Executions
from container_runtime.link import Link
from container_runtime.losses import Losses
from container_runtime.model import LostReason
from container_runtime.pool import Pool, new_id
from container_runtime.records import ContainerRecord, ContainerRequest, ContainerState
from container_runtime.room import Capacity, Room
from container_runtime.suspension import Suspension
from workroom.errors import WorkroomError

log = structlog.get_logger(__name__)

SAVE_EVERY = timedelta(seconds=5)
"""How far what is remembered of the last activity may lag behind."""


class Containers:
    """All containers of a node. Belongs to one event loop; tasks live in `tasks`."""

    def __init__(
        self,
        maker: Maker,
        executions: Executions,
        pool: Pool,
        disk: Disk,
        tasks: asyncio.TaskGroup,
        clock: Callable[[], datetime],
        *,
        node_id: str,
        capacity: Capacity,
    ) -> None:
        self._maker = maker
        self._executions = executions
        self._pool = pool
        self._tasks = tasks
        self._clock = clock
        self._node_id = node_id
        self._all: dict[str, Container] = {}
        self._by_request: dict[str, Container] = {}
        self._room = Room(self._all, pool, disk, capacity)
        self._suspension = Suspension(maker, executions, tasks, clock, self._room.check)
        self.losses = Losses(maker, executions, self._suspension, tasks)

    def all(self) -> list[Container]:
        """Every container, oldest first; without those in the pool."""
        return sorted(self._all.values(), key=lambda each: (each.record.created, each.id))

    def add(self, container: Container) -> None:
        """Count a container in."""
        container.on_lost = lambda: self.losses.lost(container)
        self._all[container.id] = container
        if container.record.request.request_id:
            self._by_request[container.record.request.request_id] = container

    def _discard(self, container: Container) -> None:
        self._all.pop(container.id, None)
        self._forget_request(container)

    def _forget_request(self, container: Container) -> None:
        request_id = container.record.request.request_id
        if self._by_request.get(request_id) is container:
            del self._by_request[request_id]

    def has_room(self) -> bool:
        """Whether another container may run."""
        return self._room.is_there()

    # Creating

    async def create(self, request: ContainerRequest) -> ContainerRecord:
        """A container in which commands can run.

        Raises `RequestIdReused`, `NodeFull`, `HostDiskFull`, `ImageNotFound`, `SupervisorFailed`,
        `VolumeFailed`, `EngineUnavailable` and `EngineRefused`. A caller that leaves gets nothing
        made, unless it can come back by its `request_id`.
        """
        container = self._by_request.get(request.request_id) if request.request_id else None
        if container is None:
            container = self._begin(request)
        elif container.record.request != request:
            raise RequestIdReused(
                f"request_id {request.request_id} was used with another request",
                request_id=request.request_id,
            )
        if container.making is not None:
            await self._made(container, container.making)
        container.touch(self._clock())
        return container.record

    async def _made(self, container: Container, making: asyncio.Task[Exception | None]) -> None:
        try:
            failed = await asyncio.shield(making)
        except asyncio.CancelledError:
            if making.cancelled():
                raise ContainerNotActive(
                    f"container {container.id} was deleted while it was made",
                    container_id=container.id,
                ) from None
            if not container.record.request.request_id:
                making.cancel()
            raise
        if failed is not None:
            raise failed

    def _begin(self, request: ContainerRequest) -> Container:
        self._room.check_new()
        container = self._pool.take(request)
        if container is None:
            self._room.check()
            container = Container(self._fresh(request))
        else:
            now = self._clock()
            container.record = replace(
                container.record, request=request, created=now, last_active=now
            )
        self.add(container)
        container.making = self._tasks.create_task(self._make(container))
        return container

    def _fresh(self, request: ContainerRequest) -> ContainerRecord:
        now = self._clock()
        return ContainerRecord(
            id=new_id(),
            node_id=self._node_id,
            request=request,
            state=ContainerState.CREATING,
            created=now,
            last_active=now,
        )

    async def _make(self, container: Container) -> Exception | None:
        try:
            if container.warm and await self._pool.is_fit(container):
                container.warm = False
                await self._maker.claim(container)
            else:
                if container.warm:
                    self._begin_anew(container)
                await self._maker.make(container)
        except Exception as error:
            self._give_back(container)
            return error
        except BaseException:
            self._give_back(container)
            raise
        finally:
            container.making = None
        log.info("container created", container_id=container.id)
        return None

    def _begin_anew(self, container: Container) -> None:
        """What came out of the pool is unfit: another takes its place."""
        self._give_back(container)
        container.link, container.warm = None, False
        container.record = self._fresh(container.record.request)
        self.add(container)

    def _give_back(self, container: Container) -> None:
        self._forget_request(container)
        if container.left_behind:
            container.become(ContainerState.DELETING)
            return
        self._discard(container)
        if container.warm:
            unfit = Container(container.record, warm=True)
            unfit.link = container.link
            self._pool.discard(unfit)

    # Finding

    def peek(self, container_id: str) -> Container:
        """One container, which does not count as used by that. Raises `ContainerNotFound`."""
        container = self._all.get(container_id)
        if container is None:
            raise ContainerNotFound(
                f"no container {container_id} on this node", container_id=container_id
            )
        return container

    def get(self, container_id: str) -> Container:
        """One container; it counts as used. Raises `ContainerNotFound`."""
        container = self.peek(container_id)
        self.touch(container)
        return container

    def active(self, container_id: str) -> Link:
        """The supervisor link of a container in which commands can run. Raises
        `ContainerNotFound` or `ContainerNotActive`."""
        container = self.get(container_id)
        if container.state is not ContainerState.ACTIVE or container.link is None:
            raise ContainerNotActive(
                f"container {container_id} is {container.state}",
                container_id=container_id,
                state=container.state,
            )
        return container.link

    async def ready(self, container_id: str) -> Link:
        """As `active`, but one that is suspended is resumed. Raises what `resume` does."""
        container = self.get(container_id)
        if container.state is not ContainerState.ACTIVE and _can_wake(container):
            await self._suspension.resume(container)
        return self.active(container_id)

    @contextmanager
    def using(self, container_id: str) -> Iterator[None]:
        """A container counts as used for as long as the body runs. Raises `ContainerNotFound`."""
        container = self.get(container_id)
        with container.using():
            try:
                yield
            finally:
                self.touch(container)

    def list(self, labels: Mapping[str, str], after: str, limit: int) -> list[ContainerRecord]:
        """Those that carry all of `labels`, oldest first, from behind the one with the key
        `after` (see `page_key`)."""
        found = (
            container.record
            for container in self.all()
            if page_key(container.record) > after
            and labels.items() <= container.record.request.labels.items()
        )
        return [record for _, record in zip(range(limit), found, strict=False)]

    def touch(self, container: Container) -> None:
        """Something happened in it."""
        container.touch(self._clock())

    # Sleeping

    async def suspend(self, container_id: str, *, force: bool = False) -> ContainerRecord:
        """Suspend a container; see `Suspension.suspend`. Raises `ContainerNotFound` as well."""
        container = self.get(container_id)
        await self._suspension.suspend(container, force=force)
        return container.record

    async def resume(self, container_id: str) -> ContainerRecord:
        """Resume a container; see `Suspension.resume`. Raises `ContainerNotFound` as well."""
        container = self.get(container_id)
        await self._suspension.resume(container)
        return container.record

    async def interrupt(self, container: Container, problem: str) -> None:
        """Count a container whose processes are gone as suspended."""
        await self._suspension.interrupt(container, problem)

    # Ending

    async def delete(self, container_id: str, why: str = "") -> None:
        """Delete a container with all that is in it; one that is gone is no error. Raises
        `EngineUnavailable` and `VolumeFailed`; the runtime then tries again by itself."""
        container = self._all.get(container_id)
        if container is None:
            return
        if container.deleting is None:
            container.deleting = self._tasks.create_task(self._delete(container, why))
        failed = await asyncio.shield(container.deleting)
        if failed is not None:
            raise failed

    async def _delete(self, container: Container, why: str) -> Exception | None:
        try:
            if container.making is not None:
                container.making.cancel()
                await asyncio.wait([container.making])
                if container.id not in self._all:
                    return None
            if container.changing is not None:
                await asyncio.wait([container.changing])
            self._forget_request(container)
            if container.state is not ContainerState.DELETING:
                container.become(ContainerState.DELETING)
                await self._maker.save(container)
            self._executions.detach(container.id)
            self._executions.explain(
                container.id, LostReason.DELETED, why or "the container was deleted"
            )
            await self._maker.take_apart(container, why)
            self._discard(container)
            log.info("container deleted", container_id=container.id)
        except Exception as error:
            return error
        finally:
            container.deleting = None
        return None

    async def close(self) -> None:
        """Let go of every container without ending any: what is being made is undone, what is
        being suspended or resumed is finished."""
        making = [each.making for each in self._all.values() if each.making is not None]
        for task in making:
            task.cancel()
        changing = [each.changing for each in self._all.values() if each.changing is not None]
        if making or changing:
            await asyncio.wait([*making, *changing])
        for container in self.all():
            if container.link is not None:
                await container.link.close()

    # As time passes

    async def reap(self) -> None:
        """Suspend what is idle, delete what is over, finish what could not be finished, remember
        activity."""
        for container in self.all():
            try:
                await self._look_after(container)
            except WorkroomError as error:
                log.warning(
                    "container not looked after", container_id=container.id, problem=error.message
                )

    async def _look_after(self, container: Container) -> None:
        if container.making is not None or container.changing is not None:
            return
        now, deletes = self._clock(), container.record.deletes
        if container.state is ContainerState.DELETING:
            await self.delete(container.id)
        elif deletes is not None and now >= deletes:
            log.info("container over", container_id=container.id, state=container.state)
            await self.delete(container.id, "its time was over")
        elif container.state is ContainerState.SUSPENDING:
            await self._suspension.finish(container)
        elif container.state is ContainerState.ACTIVE:
            await self._look_after_active(container, now)

    async def _look_after_active(self, container: Container, now: datetime) -> None:
        if self._executions.running_in(container.id) or container.in_use:
            self.touch(container)
        elif now >= container.record.expires:
            log.info("container idle", container_id=container.id)
            if container.record.request.retention:
                await self._suspension.suspend(container)
            else:
                await self.delete(container.id, "it was idle")
                return
        if container.record.last_active - container.saved.last_active > SAVE_EVERY:
            await self._maker.save(container)


def _can_wake(container: Container) -> bool:
    return container.state in (
        ContainerState.SUSPENDING,
        ContainerState.SUSPENDED,
        ContainerState.RESUMING,
    )


def page_key(record: ContainerRecord) -> str:
    """Sorts as `Containers.list` does."""
    return f"{record.created.timestamp():020.6f} {record.id}"
