"""Owns how one container is made, halted, run again and taken apart, and what is remembered of it;
a step that fails leaves nothing behind."""

import asyncio
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path

import structlog

from container_runtime.container import Container
from container_runtime.engine import ContainerSpec, Engine, EngineContainer, Image
from container_runtime.errors import SupervisorFailed
from container_runtime.events import EventKind, Events
from container_runtime.executions import Executions, Host
from container_runtime.images import Images
from container_runtime.installation import Installation
from container_runtime.interpreter import CAPABILITIES, supervisor_command, supervisor_mounts
from container_runtime.limits import Sizes
from container_runtime.link import ContainerLost, Link, SupervisorAway
from container_runtime.model import LostReason
from container_runtime.records import ContainerState, MainProcess
from container_runtime.store import Store
from container_runtime.volumes import Volumes
from workroom.errors import WorkroomError

log = structlog.get_logger(__name__)

PROBLEM_LIMIT = timedelta(seconds=2)
DRAIN_LIMIT = timedelta(seconds=2)

# The supervisor decides these by user, whatever the image says.
_NOT_FROM_IMAGE = (b"HOME", b"USER", b"LOGNAME", b"SHELL", b"HOSTNAME", b"PWD")


@dataclass(frozen=True, slots=True)
class Death:
    """How a container's main process ended."""

    problem: str
    engine_away: bool = False
    """The engine does not answer either."""


class Maker:
    """Does the steps of containers' lives, each by one call that others order."""

    def __init__(
        self,
        engine: Engine,
        images: Images,
        store: Store,
        events: Events,
        executions: Executions,
        installation: Installation,
        volumes: Volumes,
        sizes: Sizes,
        tasks: asyncio.TaskGroup,
        clock: Callable[[], datetime],
    ) -> None:
        self._engine = engine
        self._images = images
        self._store = store
        self._events = events
        self._executions = executions
        self._installation = installation
        self._volumes = volumes
        self._sizes = sizes
        self._tasks = tasks
        self._clock = clock

    # Remembering

    async def save(self, container: Container, *kinds: EventKind, message: str = "") -> None:
        """Remember a container as it is, and tell of what happened to it. One that is in the pool
        is not remembered: whoever finds it after a crash removes it."""
        if container.warm:
            return
        record = container.record
        await self._store.put_container(record)
        container.saved = record
        if kinds:
            await self._tell(container, kinds, message)

    async def _tell(self, container: Container, kinds: Sequence[EventKind], message: str) -> None:
        project_id = container.record.request.project_id
        await self._events.record(self._clock(), container.id, project_id, kinds, message)

    # Making

    async def make(self, container: Container) -> None:
        """Make a container, up to where commands can run. When that fails, nothing is left."""
        try:
            await self._make(container)
        except BaseException as error:
            await self._undo(container, str(error))
            raise

    async def _make(self, container: Container) -> None:
        await self.save(container, EventKind.CREATED)
        image = await self._images.get(container.record.request.image)
        await self.link(container).open()
        engine_id = await self._create(container, image)
        container.record = replace(
            container.record,
            engine_id=engine_id,
            image_environment=without_users(image.environment),
            image_reference=image.reference,
        )
        await self._run(container)
        container.become(ContainerState.ACTIVE)
        self.attach(container)
        await self.save(container, EventKind.ACTIVE)

    async def _create(self, container: Container, image: Image) -> str:
        """Have the engine make a container, and hear of it in any case: the engine finishes what
        it was asked for even when we are cancelled, and then there must be something to undo."""

        async def attempt() -> str | Exception:
            try:
                return await self._engine.create(await self._spec(container, image))
            except Exception as error:
                return error

        creating = self._tasks.create_task(attempt())
        try:
            made = await asyncio.shield(creating)
        except asyncio.CancelledError:
            await asyncio.wait([creating])
            raise
        if isinstance(made, Exception):
            raise made
        return made

    async def _spec(self, container: Container, image: Image) -> ContainerSpec:
        bundle, size = self._installation.bundle, self._sizes[container.record.request.size]
        labels = self._installation.labels_for(container.record)

        async def seed(into: Path) -> bool:
            return await self._engine.image_directory(image, "/workspace", labels, into)

        return ContainerSpec(
            name=container_name(container.id),
            image=image,
            command=supervisor_command(bundle),
            labels=labels,
            mounts=supervisor_mounts(bundle, self._installation.link_of(container.id)),
            capabilities=CAPABILITIES,
            limits=size,
            volumes=await self._volumes.make(container.id, image.reference, size.disk_bytes, seed),
        )

    def link(self, container: Container) -> Link:
        """The host's end of a container's supervisor link, not yet open."""
        directory = self._installation.link_of(container.id)
        directory.mkdir(mode=0o755, parents=True, exist_ok=True)

        def lost() -> None:
            if container.link is link:
                container.on_lost()

        link = Link(
            directory,
            self._executions.sink(container.id),
            self._tasks,
            container_id=container.id,
            on_lost=lost,
        )
        container.link = link
        return link

    async def _run(self, container: Container) -> None:
        """Start the main process of a container whose link is open, and meet its supervisor."""
        assert container.link is not None
        await self._engine.start(container.record.engine_id)
        found = await self._engine.inspect(container.record.engine_id)
        if found is None or not found.running:
            problem = "it vanished" if found is None else found.problem
            raise SupervisorFailed(
                f"container {container.id} did not stay up: {problem}", container_id=container.id
            )
        self.met(container, found)
        await self._volumes.check_seen(container.id, found.pid)
        try:
            await container.link.ready()
        except (SupervisorAway, ContainerLost) as error:
            again = await self._engine.inspect(container.record.engine_id)
            problem = again.problem if again and again.problem else "it does not answer"
            raise SupervisorFailed(
                f"the supervisor of container {container.id} did not come up: {problem}",
                container_id=container.id,
            ) from error

    def met(self, container: Container, found: EngineContainer) -> None:
        """Take note of a container's main process; its link accepts no other."""
        assert container.link is not None
        container.pid, container.layer = found.pid, found.layer
        container.record = replace(container.record, main_process=main_process(found.pid))
        container.link.expect(found.pid)

    def attach(self, container: Container) -> None:
        """Let commands be started in a container whose link is there."""
        assert container.link is not None

        def touch() -> None:
            container.touch(self._clock())

        host = Host(container.id, container.link, container.record.environment, touch)
        self._executions.attach(host)

    async def claim(self, container: Container) -> None:
        """Make a container out of the pool its new owner's. When that fails, nothing is left."""
        try:
            self.attach(container)
            await self.save(container, EventKind.CREATED, EventKind.ACTIVE)
        except BaseException as error:
            await self._undo(container, str(error))
            raise

    # Halting and running again

    async def halt(self, container: Container) -> None:
        """End a container's processes and keep its file system. Safe to repeat. Raises
        `EngineUnavailable`, `ContainerGone` and `VolumeFailed`."""
        await self._engine.stop(container.record.engine_id)
        if container.link is not None:
            await self.drain(container.id, container.link)
            container.link = None
        await self._volumes.unmount(container.id)

    async def resume(self, container: Container) -> None:
        """Run a halted container again, up to where commands can run."""
        await self._volumes.mount(container.id)
        await self.link(container).open()
        await self._run(container)

    async def stop(self, container: Container) -> None:
        """Kill a container's main process; who watches over it then hears of its death."""
        await self._engine.stop(container.record.engine_id)

    # Ending

    async def death_of(self, container: Container) -> Death:
        """How a container died, as far as the engine says so soon."""
        unknown = Death("its main process ended, and the container engine is away", True)
        try:
            async with asyncio.timeout(PROBLEM_LIMIT.total_seconds()):
                if not await self._engine.answers():
                    return unknown
                found = await self._engine.inspect(container.record.engine_id)
        except (WorkroomError, TimeoutError):
            return unknown
        if found is None:
            return Death("it was removed from the container engine")
        return Death(found.problem or "its main process ended")

    async def drain(self, container_id: str, link: Link) -> None:
        """Let a dead container's link deliver what it still has, then close it."""
        try:
            async with asyncio.timeout(DRAIN_LIMIT.total_seconds()):
                await self._executions.all_over(container_id)
        except TimeoutError:
            pass
        await link.close()

    async def _undo(self, container: Container, problem: str) -> None:
        try:
            await self.take_apart(container, problem)
        except WorkroomError as error:
            # It is tried again as time passes; one of the pool, when the runtime starts.
            container.left_behind = True
            log.warning("container left", container_id=container.id, problem=error.message)

    async def take_apart(self, container: Container, why: str) -> None:
        """Remove all there is of a container. Safe to repeat. Raises `EngineUnavailable` and
        `VolumeFailed`."""
        await self._remove_from_engine(container)
        if container.link is not None:
            await container.link.close()
        self._executions.end_all(container.id, LostReason.DELETED, "the container was deleted")
        await self._executions.forget(container.id)
        await self._volumes.remove(container.id)
        directory = self._installation.link_of(container.id)
        await asyncio.to_thread(shutil.rmtree, directory, True)
        if not container.warm:
            await self._store.delete_container(container.id)
            await self._tell(container, [EventKind.DELETED], why)

    async def _remove_from_engine(self, container: Container) -> None:
        if container.record.engine_id:
            await self._engine.remove(container.record.engine_id)
            return
        # It may have been made without our having heard of it.
        for found in await self._engine.list(self._installation.labels_for(container.record)):
            await self._engine.remove(found.engine_id)


def main_process(pid: int) -> MainProcess | None:
    """A process and when it started; `None` when it is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    return MainProcess(pid, int(stat.rpartition(b")")[2].split()[19]))


def container_name(container_id: str) -> str:
    """What the engine calls it, for people who list containers there."""
    return f"workroom-{container_id}"


def without_users(environment: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    """What commands get of an image's environment: all but what says who and where they are."""
    return {name: value for name, value in environment.items() if name not in _NOT_FROM_IMAGE}
