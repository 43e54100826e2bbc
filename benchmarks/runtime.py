"""Measures container_runtime through gRPC, beside the engine's own exec and a bare spawn.

Commands go by unary `Run` over one channel, bulk output by `WatchExecution`.
The service is the real process on a unix socket; everything compared is measured in turns, so
that a busy moment of the machine falls on both sides.
"""

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiodocker
import aiohttp
import uvloop

from benchmarks.results import Result, beside
from workroom.paths import Home
from workroom.rpc.channel import open_channel
from workroom.runtime.v1 import containers_pb2 as cpb
from workroom.runtime.v1 import containers_pb2_grpc as crpc
from workroom.runtime.v1 import executions_pb2 as epb
from workroom.runtime.v1 import executions_pb2_grpc as erpc

ROUNDS = 10
TRUES_PER_ROUND = 30
ENGINE_EXECS_PER_ROUND = 3
CONCURRENT = {10: (600, 30), 50: (1500, 60), 200: (1000, 200)}
"""How many at once: how many of ours, how many of the engine's."""
BULK_BYTES = 200_000_000
COLD_STARTS = 7
DOCKER_SOCKET = "/var/run/docker.sock"


class Service:
    """The runtime's process and stubs for it."""

    def __init__(self, channel: Any, pid: int = 0) -> None:
        self.pid = pid
        self.containers = crpc.ContainerServiceStub(channel)
        self.executions = erpc.ExecutionServiceStub(channel)

    async def create(self) -> str:
        """A container with the node's defaults."""
        answer = await self.containers.CreateContainer(cpb.CreateContainerRequest())
        return str(answer.container.id)

    async def delete(self, container_id: str) -> None:
        """Deletes it."""
        request = cpb.DeleteContainerRequest(container_id=container_id)
        await self.containers.DeleteContainer(request)

    async def true(self, container_id: str) -> None:
        """Runs `true` and waits for its end."""
        command = epb.Command(argv=epb.Argv(args=["true"]))
        start = epb.StartExecutionRequest(container_id=container_id, command=command)
        done = await self.executions.Run(epb.RunRequest(start=start))
        assert done.execution.outcome.WhichOneof("kind") == "exited", done

    async def bulk(self, container_id: str) -> None:
        """Streams `BULK_BYTES` of output to the client."""
        command = epb.Command(argv=epb.Argv(args=["head", "-c", str(BULK_BYTES), "/dev/zero"]))
        start = epb.StartExecutionRequest(container_id=container_id, command=command)
        execution = (await self.executions.StartExecution(start)).execution
        count = 0
        request = epb.WatchExecutionRequest(execution_id=execution.id)
        async for event in self.executions.WatchExecution(request):
            count += len(event.output.data) + event.gap.length
        assert count == BULK_BYTES


class EngineExec:
    """The engine's own exec in the same container, over its API."""

    def __init__(self, docker: aiodocker.Docker, container_id: str) -> None:
        self._docker = docker
        self._container = docker.containers.container(f"workroom-{container_id}")

    async def _run(self, command: Sequence[str]) -> int:
        execution = await self._container.exec(list(command), user="1000")
        count = 0
        async with execution.start(detach=False) as stream:
            while (message := await stream.read_out()) is not None:
                count += len(message.data)
        assert (await execution.inspect())["ExitCode"] == 0
        return count

    async def true(self) -> None:
        """Runs `true` and waits for its end."""
        await self._run(["/bin/true"])

    async def bulk(self) -> None:
        """Streams `BULK_BYTES` of output."""
        assert await self._run(["/usr/bin/head", "-c", str(BULK_BYTES), "/dev/zero"]) == BULK_BYTES


async def timed(work: Callable[[], Awaitable[object]]) -> float:
    """Seconds that it takes."""
    begun = time.perf_counter()
    await work()
    return time.perf_counter() - begun


async def spawn() -> None:
    """A bare local spawn: the loop has nothing else to do meanwhile."""
    subprocess.run(["/bin/true"], check=True)  # noqa: ASYNC221


async def at_once(
    work: Callable[[], Awaitable[object]], slots_count: int, count: int
) -> tuple[float, list[float]]:
    """How many are done in a second, `slots_count` at a time, and the seconds of each."""
    slots = asyncio.Semaphore(slots_count)

    async def one() -> float:
        async with slots:
            return await timed(work)

    begun = time.perf_counter()
    spans = await asyncio.gather(*(one() for _ in range(count)))
    return count / (time.perf_counter() - begun), spans


async def latencies(service: Service, container: str, engine: EngineExec) -> list[Result]:
    """One command after another."""
    ours: list[float] = []
    theirs: list[float] = []
    bare: list[float] = []
    for _ in range(ROUNDS):
        for _ in range(TRUES_PER_ROUND):
            ours.append(await timed(lambda: service.true(container)))
            bare.append(await timed(spawn))
        theirs += [await timed(engine.true) for _ in range(ENGINE_EXECS_PER_ROUND)]
    return [
        beside("exec_true_p50_ms", ours, "docker_exec", theirs),
        beside("exec_true_vs_spawn", ours, "local_spawn", bare),
    ]


async def throughput(service: Service, container: str, engine: EngineExec) -> list[Result]:
    """Many commands at a time, and much output of one."""
    found: list[Result] = []
    for slots, (count, engine_count) in CONCURRENT.items():
        rate, ours = await at_once(lambda: service.true(container), slots, count)
        engine_rate, theirs = await at_once(engine.true, slots, engine_count)
        latency = beside(f"exec_true_{slots}_p50_ms", ours, "docker_exec", theirs)
        rates = Result(
            *(f"exec_per_second_{slots}", rate, "1/s", "docker_exec", engine_rate),
            samples=count,
            versus_samples=engine_count,
        )
        found += [rates, latency]
    megabytes = BULK_BYTES / 1e6
    bulk = [await timed(lambda: service.bulk(container)) for _ in range(2)]
    bulk_theirs = [await timed(engine.bulk) for _ in range(2)]
    return [
        *found,
        Result(
            "exec_bandwidth_mb_s",
            megabytes / min(bulk),
            "MB/s",
            "docker_exec",
            megabytes / min(bulk_theirs),
        ),
    ]


async def cold_starts(service: Service) -> Result:
    """From nothing to the first command run, beside `docker run`."""
    ours: list[float] = []
    theirs: list[float] = []
    for _ in range(COLD_STARTS):
        begun = time.perf_counter()
        container = await service.create()
        await service.true(container)
        ours.append(time.perf_counter() - begun)
        await service.delete(container)
        theirs.append(await timed(docker_run))
    return beside("cold_start_p50_ms", ours, "docker_run", theirs)


async def docker_run() -> None:
    """`docker run` of the same command, without a network as ours."""
    process = await asyncio.create_subprocess_exec(
        *("docker", "run", "--rm", "--network", "none", "workroom/base:latest", "true")
    )
    assert await process.wait() == 0


@asynccontextmanager
async def served() -> AsyncIterator[Service]:
    """The real process on a home of its own."""
    root = Path(tempfile.mkdtemp(prefix="wr-bench-"))
    home = Home(root).create()
    environment = os.environ | {"RUNTIME_HOME": str(root), "RUNTIME_LOG_LEVEL": "warning"}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "container_runtime", env=environment
    )
    try:
        async with open_channel(f"unix:{home.socket('runtime')}") as channel:
            service = Service(channel, process.pid)
            request = cpb.GetCapabilitiesRequest()
            await service.containers.GetCapabilities(request, wait_for_ready=True, timeout=60)
            yield service
    finally:
        process.terminate()
        await process.wait()
        shutil.rmtree(root)


async def measure() -> list[Result]:
    """Everything, in about a minute."""
    connector = aiohttp.UnixConnector(DOCKER_SOCKET, limit=0)
    async with (
        served() as service,
        aiodocker.Docker(url="http://localhost", connector=connector) as docker,
    ):
        container = await service.create()
        try:
            engine = EngineExec(docker, container)
            for _ in range(20):
                await service.true(container)
            found = await latencies(service, container, engine)
            found += await throughput(service, container, engine)
        finally:
            await service.delete(container)
        found.append(await cold_starts(service))
    await connector.close()
    return found


def run() -> list[Result]:
    """Measures the runtime."""
    os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "false"
    return uvloop.run(measure())
