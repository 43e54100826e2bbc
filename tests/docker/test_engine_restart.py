"""What an engine takes down with it can be resumed. The engine is one of the test's own."""

import asyncio
import io
import os
import shutil
import signal
import subprocess
import tarfile
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import aiodocker
import pytest

from container_runtime.docker import DockerEngine
from container_runtime.setup.api import EngineApi
from container_runtime.volumes import kernel
from tests.container_runtime.node import Node, node_on, start, until
from workroom.runtime.v1 import containers_pb2 as cpb
from workroom.runtime.v1 import executions_pb2 as epb

pytestmark = [pytest.mark.docker, pytest.mark.timeout(180)]

IMAGE = "wr-test/tiny"
PROGRAMS = ("sh", "sleep", "cat")


class OwnEngine:
    """A dockerd in a network namespace of its own, with roots of its own."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.url = f"unix://{root}/docker.sock"
        self.process: asyncio.subprocess.Process | None = None

    async def begin(self) -> None:
        root = self.root
        # What a killed engine leaves keeps the next one from starting, at times.
        for name in ("docker.pid", "exec/containerd/containerd.pid"):
            (root / name).unlink(missing_ok=True)
        log = await asyncio.to_thread(open, root / "log", "ab")
        with log:
            self.process = await asyncio.create_subprocess_exec(
                *("unshare", "--net", "dockerd", "--host", self.url),
                *("--data-root", f"{root}/data", "--exec-root", f"{root}/exec"),
                *("--pidfile", f"{root}/docker.pid", "--bridge", "none", "--iptables=false"),
                *("--ip6tables=false", "--containerd-namespace", "wr-test"),
                *("--containerd-plugins-namespace", "wr-test-plugins"),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        async with asyncio.timeout(60):
            while not await self._answers():  # noqa: ASYNC110
                await asyncio.sleep(0.1)

    async def _answers(self) -> bool:
        try:
            async with aiodocker.Docker(self.url) as docker:
                await docker.version()
        except (aiodocker.DockerError, ValueError, OSError):
            assert self.process is not None
            if self.process.returncode is not None:
                log = await asyncio.to_thread((self.root / "log").read_text)
                pytest.fail(f"dockerd ended:\n{log[-3000:]}")
            return False
        return True

    async def end(self, number: int = signal.SIGTERM) -> None:
        assert self.process is not None
        if self.process.returncode is None:
            self.process.send_signal(number)
            async with asyncio.timeout(60):
                await self.process.wait()

    async def load(self) -> None:
        """Give it an image with a few programs in it."""
        archive = self.root / "image.tar"
        await asyncio.to_thread(archive.write_bytes, tiny_root())
        async with EngineApi(self.root / "docker.sock") as api:
            await api.import_image(archive, IMAGE, "latest", labels={"workroom.test": "tiny"})


def tiny_root() -> bytes:
    """A root with this machine's shell and what it needs."""
    members = {}
    for program in PROGRAMS:
        found = shutil.which(program)
        assert found is not None
        listed = subprocess.run(["ldd", found], capture_output=True, text=True, check=True)
        members[f"bin/{program}"] = found
        members |= {word[1:]: word for word in listed.stdout.split() if word.startswith("/")}
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", dereference=True) as archive:
        for name, path in members.items():
            archive.add(path, name)
    return packed.getvalue()


@pytest.fixture
async def own_engine():
    root = Path(tempfile.mkdtemp(prefix="wr-engine-"))
    engine = OwnEngine(root)
    try:
        await engine.begin()
        await engine.load()
        yield engine
    finally:
        if engine.process is not None and engine.process.returncode is None:
            await remove_all(engine)
            await engine.end()
        kill_left(root)
        for mounted in reversed(kernel.mounts()):
            if root in mounted.target.parents:
                kernel.unmount(mounted.target)
        shutil.rmtree(root)


def kill_left(root: Path) -> None:
    """Containers of an engine that was killed and did not come back go on without it."""
    for folder in Path("/proc").iterdir():
        try:
            is_shim = str(root).encode() in (folder / "cmdline").read_bytes()
            children = (folder / "task" / folder.name / "children").read_text()
        except OSError:
            continue
        if is_shim and folder.name.isdecimal():
            for pid in [*children.split(), folder.name]:
                os.kill(int(pid), signal.SIGKILL)


async def remove_all(engine: OwnEngine) -> None:
    async with aiodocker.Docker(engine.url) as docker:
        for container in await docker.containers.list(all=True):
            await container.delete(force=True, v=True)


@asynccontextmanager
async def node_of(home, own: OwnEngine) -> AsyncIterator[Node]:
    async with (
        DockerEngine.connected(own.url) as engine,
        node_on(home, engine, reap_interval=timedelta(milliseconds=200)) as node,
    ):
        yield node


def state(node, container_id: str) -> str:
    return node.runtime.containers.peek(container_id).state


async def content(node, container_id: str) -> bytes:
    done = await node.calls.run(container_id, "cat /workspace/file /layer")
    return done.stdout.head


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
async def test_an_engine_that_is_restarted_costs_commands_but_no_file(home, own_engine, number):
    async with node_of(home, own_engine) as node:
        awake, asleep = [(await node.calls.create(image=IMAGE)).id for _ in range(2)]
        for container_id in (awake, asleep):
            root = epb.Command.USER_ROOT
            await node.calls.run(container_id, "echo kept > file; echo kept > /layer", user=root)
        request = cpb.SuspendContainerRequest(container_id=asleep)
        await node.calls.containers.SuspendContainer(request)
        running = await node.calls.start(awake, "sleep 120")
        await own_engine.end(number)
        if number == signal.SIGTERM:
            lost = (await node.calls.wait(running.id)).outcome.container_lost
            assert lost.reason == epb.ContainerLost.REASON_INTERRUPTED
        await own_engine.begin()
        lost = (await node.calls.wait(running.id)).outcome.container_lost
        assert lost.reason == epb.ContainerLost.REASON_INTERRUPTED
        await until(lambda: state(node, awake) == "suspended")
        assert await content(node, awake) == b"kept\nkept\n"
        assert await content(node, asleep) == b"kept\nkept\n"
        for container_id in (awake, asleep):
            await node.calls.delete(container_id)
    assert [each for each in kernel.mounts() if home.root in each.target.parents] == []


async def test_a_container_that_was_killed_from_outside_fails_while_the_engine_lives(
    home, own_engine
):
    async with node_of(home, own_engine) as node:
        created = await node.calls.create(image=IMAGE)
        request = start(created.id, "sleep 120")
        running = (await node.calls.executions.StartExecution(request)).execution
        os.kill(node.runtime.containers.peek(created.id).pid, signal.SIGKILL)
        lost = (await node.calls.wait(running.id)).outcome.container_lost
        assert lost.reason == epb.ContainerLost.REASON_DIED
        await until(lambda: state(node, created.id) == "failed")
        await node.calls.delete(created.id)
