"""Measures the ways of running a command at 1, 10, 50 and 200 at once, in one run: unary `Run`, one
multiplexed stream, the engine's own exec, `docker run` and a bare spawn.

Beside the time of each command: the commands per second, and the processor time that the
runtime's process spends on one, which a busy machine disturbs least.
"""

import asyncio
import itertools
import os
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiodocker
import aiohttp
import uvloop

from benchmarks.results import Result, beside
from benchmarks.runtime import DOCKER_SOCKET, EngineExec, Service, at_once, served
from workroom.runtime.v1 import executions_pb2 as epb

OURS = {1: 300, 10: 600, 50: 1000, 200: 1000}
ENGINE = {1: 20, 10: 30, 50: 60, 200: 200}
DOCKER_RUN = {1: 5, 10: 10}
"""More at a time would take the whole machine for minutes."""
DOCKER = ("docker", "run", "--rm", "--network", "none", "workroom/base:latest", "true")
TICKS = os.sysconf("SC_CLK_TCK")

Measured = tuple[float, list[float]]
"""Commands per second, and the seconds of each."""


class Stream:
    """Runs commands over one multiplexed stream."""

    def __init__(self, service: Service, container: str) -> None:
        self._call: Any = service.executions.StreamExecutions()
        self._container = container
        self._numbers = itertools.count()
        self._waiting: dict[str, asyncio.Future[epb.Execution]] = {}
        self._out: deque[epb.StreamExecutionsRequest] = deque()
        self._news = asyncio.Event()

    async def true(self) -> None:
        """Runs `true` and waits for its end."""
        key = f"exec_{os.getpid()}_{next(self._numbers)}"
        command = epb.Command(argv=epb.Argv(args=["true"]))
        start = epb.StartExecutionRequest(container_id=self._container, command=command)
        done = self._waiting[key] = asyncio.get_running_loop().create_future()
        begin = epb.StreamExecutionsRequest.Start(start=start)
        self._out.append(epb.StreamExecutionsRequest(execution_id=key, start=begin))
        self._news.set()
        ended = await done
        assert ended.outcome.WhichOneof("kind") == "exited", ended

    async def write(self) -> None:
        """Sends what is waiting, for ever: a stream takes one message at a time."""
        while True:
            self._news.clear()
            while self._out:
                await self._call.write(self._out.popleft())
            await self._news.wait()

    async def read(self) -> None:
        """Takes answers, for ever."""
        async for answer in self._call:
            if answer.WhichOneof("event") == "ended":
                self._waiting.pop(answer.execution_id).set_result(answer.ended)
            elif answer.WhichOneof("event") == "failed":
                problem = RuntimeError(answer.failed.message)
                self._waiting.pop(answer.execution_id).set_exception(problem)


@asynccontextmanager
async def streaming(service: Service, container: str) -> AsyncIterator[Stream]:
    """One stream while the body runs."""
    stream = Stream(service, container)
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(stream.write()), tasks.create_task(stream.read())]
        yield stream
        for task in running:
            task.cancel()


def cpu_seconds(pid: int) -> float:
    """Processor time that a process has used, to a hundredth of a second."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def bare_spawn(words: tuple[str, ...]) -> None:
    """A process of its own, waited for."""
    pid = os.posix_spawnp(words[0], words, os.environ)
    assert os.waitpid(pid, 0)[1] == 0


def rows(name: str, slots: int, ours: Measured, theirs: Measured) -> Iterator[Result]:
    """A way's median and rate, beside the engine's exec."""
    yield beside(f"{name}_{slots}_p50_ms", ours[1], "docker_exec", theirs[1])
    yield Result(
        *(f"{name}_{slots}_per_second", ours[0], "1/s", "docker_exec", theirs[0]),
        samples=len(ours[1]),
        versus_samples=len(theirs[1]),
    )


async def side_by_side(
    service: Service, container: str, stream: Stream, engine: EngineExec, slots: int
) -> list[Result]:
    """All ways at one degree of concurrency, one after another."""
    found: list[Result] = []
    theirs = await at_once(engine.true, slots, ENGINE[slots])
    for name, work in (("run", lambda: service.true(container)), ("stream", stream.true)):
        before = cpu_seconds(service.pid)
        ours = await at_once(work, slots, OURS[slots])
        spent = (cpu_seconds(service.pid) - before) * 1000 / OURS[slots]
        found += rows(name, slots, ours, theirs)
        found.append(Result(f"{name}_{slots}_cpu_ms", spent, "ms", samples=OURS[slots]))
    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(slots) as threads:

        def spawned(*words: str) -> Awaitable[None]:
            return loop.run_in_executor(threads, bare_spawn, words)

        if slots in DOCKER_RUN:
            started = await at_once(lambda: spawned(*DOCKER), slots, DOCKER_RUN[slots])
            found += rows("docker_run", slots, started, theirs)
        bare = await at_once(lambda: spawned("/bin/true"), slots, OURS[slots])
    return [*found, *rows("spawn", slots, bare, theirs)]


async def measure() -> list[Result]:
    """Everything, in about two minutes."""
    connector = aiohttp.UnixConnector(DOCKER_SOCKET, limit=0)
    found: list[Result] = []
    async with (
        served() as service,
        aiodocker.Docker(url="http://localhost", connector=connector) as docker,
    ):
        container = await service.create()
        try:
            engine = EngineExec(docker, container)
            await at_once(lambda: service.true(container), 1, 20)
            async with streaming(service, container) as stream:
                for slots in OURS:
                    found += await side_by_side(service, container, stream, engine, slots)
        finally:
            await service.delete(container)
    await connector.close()
    return found


def run() -> list[Result]:
    """Measures the ways."""
    os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "false"
    return uvloop.run(measure())
