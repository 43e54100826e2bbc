"""Owns what the runtime needs of a container engine: few verbs, on plain values.

Nothing here knows Docker. An engine runs one main process per container, the supervisor, and
never restarts it.
"""

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Protocol

from container_runtime.interpreter import Mount
from container_runtime.limits import SizeLimits
from container_runtime.volumes import WritableMount


@dataclass(frozen=True, slots=True)
class Image:
    """An image that is on the node."""

    reference: str
    """Names exactly this image to `create`, whatever its tag points to later."""
    environment: Mapping[bytes, bytes]
    """What it gives every command."""


@dataclass(frozen=True, slots=True)
class ContainerSpec:
    """What an engine is to make: no network, no capability beyond those given, nothing shared with
    the host but the mounts. The image's entrypoint and environment are not used."""

    name: str
    image: Image
    command: Sequence[str]
    labels: Mapping[str, str]
    mounts: Sequence[Mount]
    capabilities: Sequence[str]
    limits: SizeLimits
    volumes: Sequence[WritableMount] = ()
    """Directories that the container may write to; the only ones."""


@dataclass(frozen=True, slots=True)
class EngineContainer:
    """A container as the engine sees it."""

    engine_id: str
    labels: Mapping[str, str]
    running: bool
    pid: int
    """Its main process on this host; 0 when it does not run."""
    problem: str
    """How its main process ended, in words; empty while it runs."""
    layer: Path | None = None
    """Where on this host lies what was written to its file system outside of its volumes, if the
    engine has such a place."""


@dataclass(frozen=True, slots=True)
class ContainerDied:
    """A container's main process ended."""

    engine_id: str
    problem: str


class Engine(Protocol):
    """The verbs. Each is bounded in time and raises `EngineUnavailable` when the engine does not
    answer within it, `EngineRefused` when it will not."""

    async def answers(self) -> bool:
        """Whether the engine takes calls now. Raises nothing."""

    async def image(self, name: str, pull_timeout: timedelta) -> Image:
        """The image called `name`, pulled when the node lacks it. Raises `ImageNotFound`."""

    async def image_directory(
        self, image: Image, path: str, labels: Mapping[str, str], into: Path
    ) -> bool:
        """Write a directory of an image, under its own name, into a tar file at `into`; False
        when the image has no such directory. What must be made for it carries `labels`."""

    async def create(self, spec: ContainerSpec) -> str:
        """Make a container, and answer the engine's id for it. Its main process does not run."""

    async def start(self, engine_id: str) -> None:
        """Run its main process."""

    async def stop(self, engine_id: str) -> None:
        """Kill its main process, return when that is gone, and keep its file system; `start` runs
        it again. One that does not run is no error; `ContainerGone` is raised where there is
        none."""

    async def inspect(self, engine_id: str) -> EngineContainer | None:
        """What it is now; `None` when there is no such container."""

    async def list(self, labels: Mapping[str, str]) -> Sequence[EngineContainer]:
        """All containers, running or not, that carry these labels."""

    async def remove(self, engine_id: str) -> None:
        """Kill and delete it with its file system. One that is gone already is no error."""

    def deaths(self, labels: Mapping[str, str]) -> AsyncGenerator[ContainerDied, None]:
        """Deaths of containers with these labels from now on; ends when the engine goes away."""
