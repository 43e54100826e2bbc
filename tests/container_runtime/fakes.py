"""A container engine without Docker: a real supervisor in namespaces of its own, in a root made of
this machine's programs. Needs root, as the supervisor does. It passes the suite that Docker passes.
"""

import asyncio
import os
import secrets
import shlex
import shutil
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

from container_runtime.engine import ContainerDied, ContainerSpec, EngineContainer, Image
from container_runtime.errors import ContainerGone, EngineRefused, EngineUnavailable, ImageNotFound

ENVIRONMENT = {b"PATH": b"/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", b"LANG": b"C.UTF-8"}


@dataclass
class FakeContainer:
    spec: ContainerSpec
    root: Path
    process: asyncio.subprocess.Process | None = None
    pid: int = 0
    ended: asyncio.Event = field(default_factory=asyncio.Event)


class FakeEngine:
    """An `Engine`. `refuse_start` makes containers that never come up; `unavailable` is an engine
    that does not answer."""

    def __init__(self, directory: Path, tasks: asyncio.TaskGroup) -> None:
        self._directory = directory
        self._tasks = tasks
        self._deaths: list[asyncio.Queue[str]] = []
        self.containers: dict[str, FakeContainer] = {}
        self.refuse_start = False
        self.unavailable = False
        self.away = False

    def _answer(self) -> None:
        if self.unavailable:
            raise EngineUnavailable("told not to answer")

    async def answers(self) -> bool:
        return not self.away

    async def image_directory(
        self, image: Image, path: str, labels: Mapping[str, str], into: Path
    ) -> bool:
        return False

    async def image(self, name: str, pull_timeout: timedelta) -> Image:
        self._answer()
        if name != "base":
            raise ImageNotFound(f"image {name} is not here", image=name)
        return Image(name, ENVIRONMENT)

    async def create(self, spec: ContainerSpec) -> str:
        engine_id = secrets.token_hex(8)
        self.containers[engine_id] = FakeContainer(spec, self._directory / engine_id)
        return engine_id

    async def start(self, engine_id: str) -> None:
        self._answer()
        if self.refuse_start:
            raise EngineRefused("told to refuse")
        if engine_id not in self.containers:
            raise ContainerGone("there is no such container")
        container = self.containers[engine_id]
        container.ended.clear()
        script = _setup(container.root, container.spec)
        container.process = await asyncio.create_subprocess_exec(
            *("unshare", "--mount", "--pid", "--net", "--uts", "--ipc", "--fork", "--kill-child"),
            *("sh", "-ec", script),
            env={},
            stdin=asyncio.subprocess.DEVNULL,
        )
        self._tasks.create_task(self._watch(engine_id, container, container.process))
        container.pid = await _only_child(container.process.pid)

    async def _watch(
        self, engine_id: str, container: FakeContainer, process: asyncio.subprocess.Process
    ) -> None:
        await process.wait()
        container.pid = 0
        container.ended.set()
        for queue in self._deaths:
            queue.put_nowait(engine_id)

    async def stop(self, engine_id: str) -> None:
        container = self.containers.get(engine_id)
        if container is None:
            raise ContainerGone("there is no such container")
        if container.process is not None and not container.ended.is_set():
            _kill(container.pid or container.process.pid)
            await container.ended.wait()

    async def inspect(self, engine_id: str) -> EngineContainer | None:
        container = self.containers.get(engine_id)
        if container is None:
            return None
        problem = "" if container.pid else "its main process ended with status 137"
        labels = container.spec.labels
        layer = container.root if container.root.exists() else None
        return EngineContainer(
            engine_id, labels, bool(container.pid), container.pid, problem, layer
        )

    async def list(self, labels: Mapping[str, str]) -> Sequence[EngineContainer]:
        self._answer()
        seen = [await self.inspect(engine_id) for engine_id in tuple(self.containers)]
        return [each for each in seen if each and labels.items() <= each.labels.items()]

    async def remove(self, engine_id: str) -> None:
        self._answer()
        container = self.containers.pop(engine_id, None)
        if container is None:
            return
        if container.process is not None and not container.ended.is_set():
            _kill(container.pid or container.process.pid)
            await container.ended.wait()
        shutil.rmtree(container.root, ignore_errors=True)

    async def deaths(self, labels: Mapping[str, str]) -> AsyncGenerator[ContainerDied, None]:
        queue: asyncio.Queue[str] = asyncio.Queue()
        self._deaths.append(queue)
        while True:
            yield ContainerDied(await queue.get(), "its main process ended with status 137")


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, 9)


async def _only_child(pid: int) -> int:
    """The process that `unshare` forked, once it is there."""
    children = Path(f"/proc/{pid}/task/{pid}/children")
    async with asyncio.timeout(5):
        while True:
            found = await asyncio.to_thread(children.read_text)
            if found:
                return int(found.split()[0])


def _setup(root: Path, spec: ContainerSpec) -> str:
    lines = [
        f"mkdir -p {root} && mount --bind {root} {root} && cd {root}",
        "mkdir -p dev proc tmp run workspace etc && chmod 1777 tmp && chown 1000:1000 workspace",
        "mount --rbind /dev dev && mount -t proc proc proc",
        "printf 'root:x:0:0::/root:/bin/sh\\n' > etc/passwd && ip link set lo up || true",
    ]
    lines += [
        f"if [ -L /{name} ]; then cp -PT --remove-destination /{name} {name}; "
        f"elif [ -d /{name} ]; then mkdir -p {name} && mount --bind -o ro /{name} {name}; fi"
        for name in ("usr", "bin", "sbin", "lib", "lib64")
    ]
    for mount in spec.mounts:
        target = f"{root}{mount.target}"
        lines.append(f"mkdir -p {target} && mount --bind {mount.source} {target}")
        lines.append(f"mount -o remount,bind,ro {target}")
    for volume in spec.volumes:
        target = f"{root}{volume.target}"
        lines.append(f"mkdir -p {target} && mount --bind {volume.source} {target}")
    lines.append(f"exec chroot {root} {shlex.join(spec.command)}")
    return "\n".join(lines)
