"""Owns how one container is made, and how nothing is left of it when that fails."""

import asyncio
import shutil
from collections.abc import Callable, Mapping
from datetime import timedelta

from container_runtime.container import Container
from container_runtime.engine import ContainerSpec, Engine
from container_runtime.errors import SupervisorFailed
from container_runtime.executions import Executions, Host
from container_runtime.installation import Installation
from container_runtime.interpreter import CAPABILITIES, supervisor_command, supervisor_mounts
from container_runtime.limits import SIZES
from container_runtime.link import ContainerLost, Link, SupervisorAway
from container_runtime.records import ContainerState
from container_runtime.store import Store
from workroom.errors import WorkroomError

PULL_LIMIT = timedelta(minutes=5)
PROBLEM_LIMIT = timedelta(seconds=2)
DRAIN_LIMIT = timedelta(seconds=2)

# The supervisor decides these by user, whatever the image says.
_NOT_FROM_IMAGE = (b"HOME", b"USER", b"LOGNAME", b"SHELL", b"HOSTNAME", b"PWD")


class Maker:
    """Makes containers and takes them apart again."""

    def __init__(
        self,
        engine: Engine,
        store: Store,
        executions: Executions,
        installation: Installation,
        tasks: asyncio.TaskGroup,
    ) -> None:
        self._engine = engine
        self._store = store
        self._executions = executions
        self._installation = installation
        self._tasks = tasks

    def link(self, container: Container, on_lost: Callable[[], None]) -> Link:
        """The host's end of a container's supervisor link, not yet open."""
        directory = self._installation.link_of(container.id)
        directory.mkdir(mode=0o755, parents=True, exist_ok=True)
        container.link = Link(
            directory,
            self._executions.sink(container.id),
            self._tasks,
            container_id=container.id,
            on_lost=on_lost,
        )
        return container.link

    async def make(
        self, container: Container, touch: Callable[[], None], on_lost: Callable[[], None]
    ) -> None:
        """Make a container, up to where commands can run. When that fails, `take_apart` it."""
        await self.save(container)
        request = container.record.request
        image = await self._engine.image(request.image, PULL_LIMIT)
        environment = without_users(image.environment)
        link = self.link(container, on_lost)
        await link.open()
        engine_id = await self._engine.create(
            ContainerSpec(
                name=container_name(container.id),
                image=image,
                command=supervisor_command(self._installation.bundle),
                labels=self._installation.labels_for(container.record),
                mounts=supervisor_mounts(
                    self._installation.bundle, self._installation.link_of(container.id)
                ),
                capabilities=CAPABILITIES,
                limits=SIZES[request.size],
            )
        )
        container.made(engine_id, environment)
        await self._engine.start(engine_id)
        await self._meet(container, link)
        container.become(ContainerState.ACTIVE)
        self.attach(container, touch)
        await self.save(container)

    async def _meet(self, container: Container, link: Link) -> None:
        found = await self._engine.inspect(container.record.engine_id)
        if found is None or not found.running:
            problem = "it vanished" if found is None else found.problem
            raise SupervisorFailed(
                f"container {container.id} did not stay up: {problem}", container_id=container.id
            )
        link.expect(found.pid)
        try:
            await link.ready()
        except (SupervisorAway, ContainerLost) as error:
            found = await self._engine.inspect(container.record.engine_id)
            problem = found.problem if found and found.problem else "it does not answer"
            raise SupervisorFailed(
                f"the supervisor of container {container.id} did not come up: {problem}",
                container_id=container.id,
            ) from error

    async def problem_of(self, container: Container) -> str:
        """How a container died, as far as the engine says so soon."""
        try:
            async with asyncio.timeout(PROBLEM_LIMIT.total_seconds()):
                found = await self._engine.inspect(container.record.engine_id)
        except (WorkroomError, TimeoutError):
            return "its main process ended, and the container engine does not answer"
        if found is None:
            return "it was removed from the container engine"
        return found.problem or "its main process ended"

    async def drain(self, container_id: str, link: Link) -> None:
        """Let a dead container's link deliver what it still has, then close it."""
        try:
            async with asyncio.timeout(DRAIN_LIMIT.total_seconds()):
                await self._executions.all_over(container_id)
        except TimeoutError:
            pass
        await link.close()

    def attach(self, container: Container, touch: Callable[[], None]) -> None:
        """Let commands be started in a container whose link is there."""
        assert container.link is not None
        host = Host(container.id, container.link, container.record.environment, touch)
        self._executions.attach(host)

    async def save(self, container: Container) -> None:
        """Remember a container as it is."""
        record = container.record
        await self._store.put_container(record)
        container.saved = record

    async def take_apart(self, container: Container) -> None:
        """Remove all there is of a container. Safe to repeat. Raises `EngineUnavailable`."""
        await self._remove_from_engine(container)
        if container.link is not None:
            await container.link.close()
        self._executions.end_all(container.id, "the container was deleted")
        await self._executions.forget(container.id)
        directory = self._installation.link_of(container.id)
        await asyncio.to_thread(shutil.rmtree, directory, True)
        await self._store.delete_container(container.id)

    async def _remove_from_engine(self, container: Container) -> None:
        if container.record.engine_id:
            await self._engine.remove(container.record.engine_id)
            return
        # It may have been made without our having heard of it.
        for found in await self._engine.list(self._installation.labels_for(container.record)):
            await self._engine.remove(found.engine_id)


def container_name(container_id: str) -> str:
    """What the engine calls it, for people who list containers there."""
    return f"workroom-{container_id}"


def without_users(environment: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    """What commands get of an image's environment: all but what says who and where they are."""
    return {name: value for name, value in environment.items() if name not in _NOT_FROM_IMAGE}
