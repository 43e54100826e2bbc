"""Owns the containers that are made before anybody asks for them, per image and size.

A container leaves the pool in one step of the event loop, so none is handed out twice.
"""

import asyncio
import re
import secrets
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import structlog

from container_runtime.container import Container
from container_runtime.creation import Maker
from container_runtime.disk import Disk
from container_runtime.errors import HostDiskFull, ImageNotFound
from container_runtime.images import Images
from container_runtime.link import ContainerLost, FileError, SupervisorAway
from container_runtime.records import ContainerRecord, ContainerRequest, ContainerState, Size
from workroom.errors import WorkroomError

log = structlog.get_logger(__name__)

WARM_MAX = 64
"""How many containers all pools of a node may hold together."""
LOOK_EVERY = 10.0
"""Seconds after which pools are looked at though nothing was claimed; failures wait as long."""
REFILL_PAUSE = 0.3
"""Seconds after a claim before the engine is made busy again: the first commands come first."""
HEALTH_LIMIT = timedelta(seconds=1)
CLOSE_LIMIT = timedelta(seconds=15)

_TARGET = re.compile(r"(?P<image>\S+)/(?P<size>small|medium|large)=(?P<count>\d{1,2})")

Kind = tuple[str, Size]


@dataclass(frozen=True, slots=True)
class PoolTarget:
    """How many containers of a kind are to wait."""

    image: str
    size: Size
    count: int


def parse_target(text: str) -> PoolTarget:
    """Reads `base/medium=2`. Raises ValueError."""
    found = _TARGET.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is not IMAGE/SIZE=COUNT, for instance base/medium=2")
    return PoolTarget(found["image"], Size(found["size"]), int(found["count"]))


@dataclass(frozen=True, slots=True)
class PoolStatus:
    """How a pool is doing."""

    target: PoolTarget
    ready: int


class Pool:
    """All warm containers of a node. Belongs to one event loop; tasks live in `tasks`."""

    def __init__(
        self,
        maker: Maker,
        images: Images,
        disk: Disk,
        tasks: asyncio.TaskGroup,
        clock: Callable[[], datetime],
        targets: Iterable[PoolTarget],
        *,
        node_id: str,
    ) -> None:
        self._maker = maker
        self._images = images
        self._disk = disk
        self._tasks = tasks
        self._clock = clock
        self._node_id = node_id
        self._targets = {(target.image, target.size): target for target in targets}
        self._ready: dict[Kind, deque[Container]] = {kind: deque() for kind in self._targets}
        self._making = 0
        self._wanted = asyncio.Event()
        self._leaving: set[asyncio.Task[None]] = set()
        self._closed = False

    @property
    def size(self) -> int:
        """How many containers are in the pools or being made for them."""
        return self._making + sum(len(each) for each in self._ready.values())

    def status(self) -> Sequence[PoolStatus]:
        """Each pool and how many of its containers are ready."""
        return [
            PoolStatus(target, len(self._ready[kind])) for kind, target in self._targets.items()
        ]

    # Handing out

    def take(self, request: ContainerRequest) -> Container | None:
        """A container that looks alive and is now nobody else's; to be checked by `is_fit`."""
        ready = self._ready.get((request.image, request.size))
        self._wanted.set()
        while ready:
            container = ready.popleft()
            if container.link is not None and container.link.connected:
                return container
            self.discard(container)
        return None

    async def is_fit(self, container: Container) -> bool:
        """Whether a container that was taken answers, and still is what its image's name means."""
        assert container.link is not None
        try:
            async with asyncio.timeout(HEALTH_LIMIT.total_seconds()):
                image, _ = await asyncio.gather(
                    self._images.find(container.record.request.image),
                    container.link.stat(b"/"),
                )
        except (TimeoutError, SupervisorAway, ContainerLost, FileError, ImageNotFound) as error:
            log.warning("warm container unfit", container_id=container.id, problem=str(error))
            return False
        return image.reference == container.record.image_reference

    def discard(self, container: Container) -> None:
        """Remove a container that is not to be handed out."""
        container.warm = True
        task = self._tasks.create_task(self._remove(container))
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    def give_way(self) -> bool:
        """Remove one container to make room for another kind; False when there is none."""
        fullest = max(self._ready.values(), key=len, default=None)
        if not fullest:
            return False
        self.discard(fullest.pop())
        return True

    async def _remove(self, container: Container) -> None:
        try:
            await self._maker.take_apart(container, "")
        except WorkroomError as error:
            # It carries our label and nobody owns it: the next start of the runtime removes it.
            log.warning("warm container left", container_id=container.id, problem=error.message)

    def _lost(self, container: Container) -> None:
        """It died while it waited, or while it was being handed out, which then fails."""
        for ready in self._ready.values():
            if container in ready:
                ready.remove(container)
                log.warning("warm container died", container_id=container.id)
                self.discard(container)
                self._wanted.set()

    # Refilling

    async def keep_for_ever(self, has_room: Callable[[], bool]) -> None:
        """Fill the pools and keep them full, as long as `has_room`; one container at a time, so
        that those who wait for theirs come first."""
        while True:
            self._wanted.clear()
            for kind, target in self._targets.items():
                try:
                    await self._look_at(kind, target, has_room)
                except WorkroomError as error:
                    log.warning(
                        "pool not filled",
                        image=target.image,
                        size=target.size,
                        problem=error.message,
                    )
                    await asyncio.sleep(LOOK_EVERY)
            try:
                async with asyncio.timeout(LOOK_EVERY):
                    await self._wanted.wait()
                await asyncio.sleep(REFILL_PAUSE)
            except TimeoutError:
                pass

    async def _look_at(self, kind: Kind, target: PoolTarget, has_room: Callable[[], bool]) -> None:
        ready = self._ready[kind]
        image = await self._images.get(target.image)
        for container in [each for each in ready if _other_image(each, image.reference)]:
            if container in ready:
                ready.remove(container)
                self.discard(container)
        while len(ready) < target.count and has_room() and not self._closed:
            try:
                self._disk.check()
            except HostDiskFull:
                return
            ready.append(await self._make(target))

    async def _make(self, target: PoolTarget) -> Container:
        now = self._clock()
        record = ContainerRecord(
            id=new_id(),
            node_id=self._node_id,
            request=ContainerRequest(image=target.image, size=target.size),
            state=ContainerState.CREATING,
            created=now,
            last_active=now,
        )
        container = Container(record, warm=True)
        container.on_lost = lambda: self._lost(container)
        self._making += 1
        try:
            await self._maker.make(container)
        finally:
            self._making -= 1
        return container

    async def close(self) -> None:
        """Remove all containers that nobody claimed; what cannot be removed soon, the next start
        of the runtime removes."""
        self._closed = True
        for ready in self._ready.values():
            while ready:
                self.discard(ready.popleft())
        if self._leaving:
            await asyncio.wait(self._leaving, timeout=CLOSE_LIMIT.total_seconds())


def new_id() -> str:
    """A container's id."""
    return f"ctr_{secrets.token_hex(8)}"


def _other_image(container: Container, reference: str) -> bool:
    return container.record.image_reference != reference
