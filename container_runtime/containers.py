"""Owns which containers there are and how each lives and ends; knows no transport."""

import asyncio
import secrets
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta

import structlog

from container_runtime.container import Container
from container_runtime.creation import Maker
from container_runtime.disk import Disk
from container_runtime.errors import (
    ContainerNotActive,
    ContainerNotFound,
    NodeFull,
    RequestIdReused,
)
from container_runtime.executions import Executions
from container_runtime.link import Link
from container_runtime.records import ContainerRecord, ContainerRequest, ContainerState
from workroom.errors import WorkroomError

log = structlog.get_logger(__name__)

RETRY_AFTER = timedelta(seconds=5)
SAVE_EVERY = timedelta(seconds=5)
"""How far what is remembered of the last activity may lag behind."""


class Containers:
    """All containers of a node. Belongs to one event loop; tasks live in `tasks`."""

    def __init__(
        self,
        maker: Maker,
        executions: Executions,
        disk: Disk,
        tasks: asyncio.TaskGroup,
        clock: Callable[[], datetime],
        *,
        node_id: str,
        max_containers: int,
    ) -> None:
        self._maker = maker
        self._executions = executions
        self._disk = disk
        self._tasks = tasks
        self._clock = clock
        self._node_id = node_id
        self._max = max_containers
        self._all: dict[str, Container] = {}
        self._by_request: dict[str, Container] = {}

    def all(self) -> list[Container]:
        """Every container, oldest first."""
        return sorted(self._all.values(), key=lambda each: (each.record.created, each.id))

    def add(self, container: Container) -> None:
        """Count a container in."""
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

    # Creating

    async def create(self, request: ContainerRequest) -> ContainerRecord:
        """A container in which commands can run.

        Raises `RequestIdReused`, `NodeFull`, `HostDiskFull`, `ImageNotFound`, `SupervisorFailed`,
        `EngineUnavailable` and `EngineRefused`. A caller that leaves gets nothing made, unless it
        can come back by its `request_id`.
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
        if len(self._all) >= self._max:
            raise NodeFull(
                f"the node holds {len(self._all)} containers, as many as it may",
                retry_after=RETRY_AFTER,
                max_containers=str(self._max),
            )
        self._disk.check()
        now = self._clock()
        record = ContainerRecord(
            id=f"ctr_{secrets.token_hex(8)}",
            node_id=self._node_id,
            request=request,
            state=ContainerState.CREATING,
            created=now,
            last_active=now,
        )
        container = Container(record)
        self.add(container)
        container.making = self._tasks.create_task(self._make(container))
        return container

    async def _make(self, container: Container) -> Exception | None:
        try:
            await self._maker.make(
                container, lambda: self.touch(container), lambda: self.lost(container)
            )
        except Exception as error:
            await self._undo(container)
            return error
        except BaseException:
            await self._undo(container)
            raise
        finally:
            container.making = None
        log.info("container created", container_id=container.id)
        return None

    async def _undo(self, container: Container) -> None:
        container.become(ContainerState.DELETING)
        self._forget_request(container)
        try:
            await self._maker.take_apart(container)
        except Exception:
            # It is tried again as time passes, and when the runtime starts.
            log.exception("container left behind for now", container_id=container.id)
        else:
            self._discard(container)

    # Finding

    def get(self, container_id: str) -> Container:
        """One container; it counts as used. Raises `ContainerNotFound`."""
        container = self._all.get(container_id)
        if container is None:
            raise ContainerNotFound(
                f"no container {container_id} on this node", container_id=container_id
            )
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

    # Ending

    async def delete(self, container_id: str) -> None:
        """Delete a container with all that is in it; one that is gone is no error. Raises
        `EngineUnavailable`; the runtime then tries again by itself."""
        container = self._all.get(container_id)
        if container is None:
            return
        if container.deleting is None:
            container.deleting = self._tasks.create_task(self._delete(container))
        failed = await asyncio.shield(container.deleting)
        if failed is not None:
            raise failed

    async def _delete(self, container: Container) -> Exception | None:
        try:
            if container.making is not None:
                container.making.cancel()
                await asyncio.wait([container.making])
                if container.id not in self._all:
                    return None
            self._forget_request(container)
            if container.state is not ContainerState.DELETING:
                container.become(ContainerState.DELETING)
                await self._maker.save(container)
            self._executions.detach(container.id)
            await self._maker.take_apart(container)
            self._discard(container)
            log.info("container deleted", container_id=container.id)
        except Exception as error:
            return error
        finally:
            container.deleting = None
        return None

    def lost(self, container: Container) -> None:
        """Its main process is gone."""
        if container.state is ContainerState.ACTIVE:
            self._tasks.create_task(self._fail(container))

    async def _fail(self, container: Container) -> None:
        try:
            problem = await self._maker.problem_of(container)
            await self.fail(container, problem)
        except Exception:
            log.exception("loss of a container not recorded", container_id=container.id)

    async def fail(self, container: Container, problem: str) -> None:
        """Record that a container died without having been deleted."""
        if container.state is not ContainerState.ACTIVE:
            return
        container.become(ContainerState.FAILED, failure=problem)
        log.warning("container failed", container_id=container.id, problem=problem)
        self._executions.detach(container.id)
        if container.link is not None:
            await self._maker.drain(container.id, container.link)
        self._executions.end_all(container.id, problem)
        await self._maker.save(container)

    async def close(self) -> None:
        """Let go of every container without ending any: what is being made is undone."""
        making = [each.making for each in self._all.values() if each.making is not None]
        for task in making:
            task.cancel()
        if making:
            await asyncio.wait(making)
        for container in self.all():
            if container.link is not None:
                await container.link.close()

    # As time passes

    async def reap(self) -> None:
        """Delete what has expired, finish what could not be deleted, remember activity."""
        for container in self.all():
            try:
                await self._look_after(container)
            except WorkroomError as error:
                log.warning(
                    "container not looked after", container_id=container.id, problem=error.message
                )

    async def _look_after(self, container: Container) -> None:
        if container.state is ContainerState.CREATING:
            return
        if container.state is ContainerState.DELETING:
            await self.delete(container.id)
            return
        if self._executions.running_in(container.id):
            self.touch(container)
        if self._clock() >= container.record.expires:
            log.info("container expired", container_id=container.id)
            await self.delete(container.id)
        elif container.record.last_active - container.saved.last_active > SAVE_EVERY:
            await self._maker.save(container)


def page_key(record: ContainerRecord) -> str:
    """Sorts as `Containers.list` does."""
    return f"{record.created.timestamp():020.6f} {record.id}"
