"""Measures how soon a container can be used: out of the pool, after a sleep, and made for the
occasion with and without its size-limited disk."""

import asyncio
import os
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import uvloop

from benchmarks.results import Result, median_ms
from benchmarks.runtime import Service, docker_run, timed
from workroom.paths import Home
from workroom.rpc.channel import open_channel
from workroom.runtime.v1 import containers_pb2 as cpb

CLAIMS = 20
STARTS = 9
POOL = 2


@asynccontextmanager
async def served(settings: Mapping[str, str]) -> AsyncIterator[Service]:
    """The real process on a home of its own, with these settings."""
    root = Path(tempfile.mkdtemp(prefix="wr-bench-"))
    home = Home(root).create()
    environment = {"RUNTIME_HOME": str(root), "RUNTIME_LOG_LEVEL": "warning", **settings}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "container_runtime", env=os.environ | environment
    )
    try:
        async with open_channel(f"unix:{home.socket('runtime')}") as channel:
            service = Service(channel)
            request = cpb.GetCapabilitiesRequest()
            await service.containers.GetCapabilities(request, wait_for_ready=True, timeout=60)
            yield service
    finally:
        process.terminate()
        await process.wait()
        shutil.rmtree(root)


async def first_command(service: Service) -> tuple[float, str]:
    """Seconds from asking for a container to the end of its first command, and its id."""
    begun = time.perf_counter()
    container = await service.create()
    await service.true(container)
    return time.perf_counter() - begun, container


async def pool_is_full(service: Service) -> None:
    """Returns when as many containers wait as are to."""
    async with asyncio.timeout(120):
        while True:
            told = await service.containers.GetCapabilities(cpb.GetCapabilitiesRequest())
            if all(pool.ready == pool.target for pool in told.warm_pools):
                return
            await asyncio.sleep(0.05)


async def warm_claims() -> Result:
    """Out of the pool; it is left to fill up again before the next."""
    spans: list[float] = []
    async with served({"RUNTIME_WARM_POOL": f"base/medium={POOL}"}) as service:
        for _ in range(CLAIMS):
            await pool_is_full(service)
            span, container = await first_command(service)
            spans.append(span)
            await service.delete(container)
    return Result("warm_claim_p50_ms", median_ms(spans), "ms")


async def cold_starts() -> list[Result]:
    """Made for the occasion, in turns with `docker run`."""
    bounded: list[float] = []
    unbounded: list[float] = []
    theirs: list[float] = []
    async with served({}) as service, served({"RUNTIME_BOUND_DISKS": "false"}) as without:
        for each in (service, without):  # the image's template is made once
            await each.delete((await first_command(each))[1])
        for _ in range(STARTS):
            for spans, each in ((bounded, service), (unbounded, without)):
                span, container = await first_command(each)
                spans.append(span)
                await each.delete(container)
            theirs.append(await timed(docker_run))
    p50 = median_ms(bounded)
    return [
        Result("cold_start_bounded_p50_ms", p50, "ms", "docker_run", median_ms(theirs)),
        Result("cold_start_disk_ms", p50, "ms", "without_disk", median_ms(unbounded)),
    ]


async def resumes() -> Result:
    """From the first command to a suspended container to that command's end."""
    spans: list[float] = []
    async with served({}) as service:
        _, container = await first_command(service)
        for _ in range(STARTS):
            request = cpb.SuspendContainerRequest(container_id=container)
            await service.containers.SuspendContainer(request)
            begun = time.perf_counter()
            await service.true(container)
            spans.append(time.perf_counter() - begun)
        await service.delete(container)
    return Result("resume_p50_ms", median_ms(spans), "ms")


async def measure() -> list[Result]:
    """Everything, in about a minute."""
    return [await warm_claims(), *await cold_starts(), await resumes()]


def run() -> list[Result]:
    """Measures the life cycle."""
    os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "false"
    return uvloop.run(measure())
