"""Owns the agreement between what we remember and what the engine runs: at start, and as
containers die.

What is alive and remembered is adopted; what carries our label and nobody remembers is removed.
"""

import asyncio
import shutil
from collections.abc import Sequence
from contextlib import aclosing
from pathlib import Path

import structlog

from container_runtime.container import Container
from container_runtime.containers import Containers
from container_runtime.creation import Maker
from container_runtime.engine import Engine, EngineContainer
from container_runtime.executions import Executions
from container_runtime.installation import CONTAINER_LABEL, Installation
from container_runtime.link import ContainerLost, Link, SupervisorAway
from container_runtime.records import ContainerRecord, ContainerState
from container_runtime.store import Store
from container_runtime.volumes import Volumes
from workroom.errors import WorkroomError

log = structlog.get_logger(__name__)

WATCH_PAUSE = 1.0
"""Seconds before the engine is asked again after it went away."""


class Reconciler:
    """Brings containers and engine into agreement."""

    def __init__(
        self,
        engine: Engine,
        store: Store,
        containers: Containers,
        executions: Executions,
        maker: Maker,
        installation: Installation,
        volumes: Volumes,
        tasks: asyncio.TaskGroup,
    ) -> None:
        self._engine = engine
        self._store = store
        self._containers = containers
        self._executions = executions
        self._maker = maker
        self._installation = installation
        self._volumes = volumes
        self._tasks = tasks

    async def at_start(self) -> None:
        """Adopt, fail or remove everything that an earlier process left. Raises
        `EngineUnavailable`."""
        records = {record.id: record for record in await self._store.containers()}
        found = {there.engine_id: there for there in await self._ours()}
        for there in found.values():
            container_id = there.labels[CONTAINER_LABEL]
            record = records.get(container_id)
            if record is None or record.engine_id not in ("", there.engine_id):
                log.info("orphan removed", container_id=container_id)
                await self._engine.remove(there.engine_id)
        for record in records.values():
            await self._take_up(record, found.get(record.engine_id))
        await self._volumes.sweep({container.id for container in self._containers.all()})
        for directory in (self._installation.link_directory, self._installation.spool_directory):
            await asyncio.to_thread(_remove_strays, directory, set(records))

    async def _ours(self) -> Sequence[EngineContainer]:
        listed = await self._engine.list(self._installation.labels())
        return [each for each in listed if CONTAINER_LABEL in each.labels]

    async def _take_up(self, record: ContainerRecord, there: EngineContainer | None) -> None:
        container = Container(record)
        await self._executions.recover(record.id)
        match record.state:
            case ContainerState.ACTIVE:
                await self._take_up_active(container, there)
            case ContainerState.RESUMING:
                container.become(ContainerState.SUSPENDING)
                self._containers.add(container)
            case ContainerState.SUSPENDING | ContainerState.SUSPENDED | ContainerState.FAILED:
                self._containers.add(container)
            case ContainerState.CREATING | ContainerState.DELETING:
                await self._maker.take_apart(container, "the runtime was restarted")

    async def _take_up_active(self, container: Container, there: EngineContainer | None) -> None:
        if there is not None and there.running:
            await self._adopt(container, there)
            return
        self._containers.add(container)
        if there is None:
            problem = "while the runtime was down, it was removed from the container engine"
            await self._containers.losses.fail(container, problem)
        else:
            problem = f"while the runtime was down, {there.problem}"
            await self._containers.interrupt(container, problem)

    async def _adopt(self, container: Container, there: EngineContainer) -> None:
        self._containers.add(container)
        link = self._maker.link(container)
        self._maker.attach(container)
        self._maker.met(container, there)
        await link.open()
        self._tasks.create_task(self._settle(container, link))
        log.info("container adopted", container_id=container.id)

    async def _settle(self, container: Container, link: Link) -> None:
        """When its supervisor is back, see which executions it knows."""
        while container.state is ContainerState.ACTIVE:
            try:
                await link.ready()
                await self._executions.settle(container.id)
                return
            except SupervisorAway:
                log.warning("supervisor not back yet", container_id=container.id)
            except ContainerLost:
                return
            except Exception:
                log.exception("executions not settled", container_id=container.id)
                return

    async def watch_for_ever(self) -> None:
        """Hear of deaths from the engine, and look for those not heard of while it was away."""
        while True:
            try:
                async with aclosing(self._engine.deaths(self._installation.labels())) as deaths:
                    async for death in deaths:
                        self._died(death.engine_id)
            except WorkroomError as error:
                log.warning("container engine went away", problem=error.message)
            await self._engine_went_away()
            await asyncio.sleep(WATCH_PAUSE)
            try:
                await self._look()
                self._containers.losses.engine_came_back()
            except WorkroomError as error:
                log.warning("containers not looked at", problem=error.message)

    async def _engine_went_away(self) -> None:
        try:
            await self._containers.losses.engine_went_away(self._containers.all())
        except WorkroomError as error:
            log.warning("containers not kept", problem=error.message)

    async def _look(self) -> None:
        running = {each.engine_id for each in await self._ours() if each.running}
        for container in self._containers.all():
            if container.state is ContainerState.ACTIVE:
                if container.record.engine_id not in running:
                    self._died(container.record.engine_id)

    def _died(self, engine_id: str) -> None:
        for container in self._containers.all():
            if container.record.engine_id == engine_id and container.link is not None:
                container.link.container_died()


def _remove_strays(directory: Path, known: set[str]) -> None:
    for path in directory.iterdir():
        if path.name not in known:
            shutil.rmtree(path, ignore_errors=True)
