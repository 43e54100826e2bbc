"""How fast one container's supervisor is over its link, next to a bare spawn in the same run.

`python -m benchmarks.supervisor [IMAGE]`; needs Docker and an image with /bin/true and head.
"""

import asyncio
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import uvloop

from benchmarks.results import Result
from container_runtime.interpreter import (
    CAPABILITIES,
    collect,
    supervisor_command,
    supervisor_mounts,
)
from container_runtime.link import Link
from container_runtime.model import Offsets, Outcome, StartSpec, Stream

SERIAL, PARALLEL, AT_ONCE, MEGABYTES = 300, 2000, 50, 1000
TRUE = (b"/bin/true",)


class Counter:
    """Counts output and wakes whoever waits for an end."""

    def __init__(self) -> None:
        self._waiting: dict[str, asyncio.Future[Outcome]] = {}

    def expect(self, exec_id: str) -> asyncio.Future[Outcome]:
        waiting = self._waiting[exec_id] = asyncio.get_running_loop().create_future()
        return waiting

    async def output(self, exec_id: str, stream: Stream, offset: int, data: bytes) -> None:
        pass

    async def ended(self, exec_id: str, outcome: Outcome) -> None:
        self._waiting.pop(exec_id).set_result(outcome)

    async def resume(self, exec_id: str) -> Offsets | None:
        return None


class Runner:
    """Runs commands over a link."""

    def __init__(self, link: Link, counter: Counter) -> None:
        self._link, self._counter, self._count = link, counter, 0

    async def run(self, argv: tuple[bytes, ...]) -> Outcome:
        self._count += 1
        spec = StartSpec(f"exec_{self._count}", argv=argv, cwd=b"/")
        ended = self._counter.expect(spec.exec_id)
        await self._link.start(spec)
        return await ended


@asynccontextmanager
async def container(image: str, directory: Path) -> AsyncIterator[tuple[Runner, int]]:
    """A container with the supervisor, and its main process."""
    bundle = collect(directory / "state")
    counter = Counter()
    async with asyncio.TaskGroup() as tasks:
        link = Link(directory / "link", counter, tasks, container_id="ctr_bench")
        await link.open()
        program, *arguments = supervisor_command(bundle)
        words = ["docker", "run", "-d", "--label", "workroom.bench=supervisor"]
        words += ["--network", "none", "--user", "0:0", "--cap-drop", "ALL"]
        words += [word for name in CAPABILITIES for word in ("--cap-add", name)]
        for mount in supervisor_mounts(bundle, directory / "link"):
            words += ["--volume", f"{mount.source}:{mount.target}:ro"]
        name = said(*words, "--entrypoint", program, image, *arguments)
        try:
            pid = int(said("docker", "inspect", "--format", "{{.State.Pid}}", name))
            link.expect(pid)
            await link.ready()
            yield Runner(link, counter), pid
        finally:
            said("docker", "rm", "-f", name)
            await link.close()


def said(*words: str) -> str:
    return subprocess.run(words, stdout=subprocess.PIPE, check=True).stdout.decode().strip()


def pss_mb(pid: int) -> float:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) / 1024
    return 0.0


def bare() -> float:
    began = time.perf_counter()
    subprocess.run(TRUE, check=True)
    return time.perf_counter() - began


async def serial(runner: Runner) -> tuple[float, float]:
    """Median seconds of one command, and of a bare spawn, taken in turns."""
    ours, spawns = [], []
    for _ in range(SERIAL):
        began = time.perf_counter()
        await runner.run(TRUE)
        ours.append(time.perf_counter() - began)
        spawns.append(bare())
    return statistics.median(ours), statistics.median(spawns)


async def parallel(runner: Runner) -> float:
    """Commands per second."""
    left = iter(range(PARALLEL))

    async def work() -> None:
        for _ in left:
            assert (await runner.run(TRUE)).code == 0

    began = time.perf_counter()
    async with asyncio.TaskGroup() as tasks:
        for _ in range(AT_ONCE):
            tasks.create_task(work())
    return PARALLEL / (time.perf_counter() - began)


async def bandwidth(runner: Runner) -> float:
    """Megabytes per second of one command's output."""
    size = MEGABYTES * 1_000_000
    began = time.perf_counter()
    outcome = await runner.run((b"head", b"-c", b"%d" % size, b"/dev/zero"))
    assert outcome.stdout_bytes == size
    return MEGABYTES / (time.perf_counter() - began)


async def main(image: str) -> None:
    with tempfile.TemporaryDirectory(prefix="workroom-bench-") as name:
        async with container(image, Path(name)) as (runner, pid):
            await asyncio.sleep(0.5)
            idle = pss_mb(pid)
            await runner.run(TRUE)
            ours, spawn = await serial(runner)
            print(f"one true, p50          {ours * 1000:8.2f} ms")
            print(f"bare spawn, p50        {spawn * 1000:8.2f} ms   ratio {ours / spawn:.2f}")
            print(f"{AT_ONCE} at once             {await parallel(runner):8.0f} per second")
            print(f"output of one          {await bandwidth(runner):8.0f} MB/s")
            await asyncio.sleep(6)
            print(f"supervisor idle, PSS   {idle:8.1f} MB")
            print(f"supervisor after, PSS  {pss_mb(pid):8.1f} MB")


async def idle_memory(image: str) -> float:
    """Proportional memory in MB of an idle supervisor."""
    with tempfile.TemporaryDirectory(prefix="workroom-bench-") as name:
        async with container(image, Path(name)) as (_, pid):
            await asyncio.sleep(0.5)
            return pss_mb(pid)


def run() -> list[Result]:
    """Measures the supervisor alone; what it does behind gRPC is the runtime's to measure."""
    return [Result("supervisor_pss_mb", uvloop.run(idle_memory("workroom/base:latest")), "MB")]


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1] if len(sys.argv) > 1 else "workroom/base:latest"))
