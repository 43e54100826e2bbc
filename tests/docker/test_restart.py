"""The real process, killed at any moment, loses nothing and runs nothing twice."""

import asyncio
import os
import signal
import sys
from contextlib import asynccontextmanager

import grpc
import pytest

from tests.container_runtime.fixtures import docker_engine
from tests.container_runtime.node import Calls, digest, start
from workroom.rpc.channel import open_channel
from workroom.runtime.v1 import containers_pb2 as cpb
from workroom.runtime.v1 import executions_pb2 as epb

pytestmark = [pytest.mark.docker, pytest.mark.timeout(120)]


class Service:
    """`python -m container_runtime` on a home."""

    def __init__(self, home) -> None:
        self._home = home
        self.process: asyncio.subprocess.Process | None = None

    async def begin(self) -> None:
        environment = os.environ | {
            "RUNTIME_HOME": str(self._home.root),
            "RUNTIME_LOG_LEVEL": "warning",
            "RUNTIME_MIN_FREE_BYTES": "0",
        }
        self.process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "container_runtime", env=environment
        )

    async def end(self, number: int) -> int:
        assert self.process is not None
        if self.process.returncode is None:
            self.process.send_signal(number)
        return await self.process.wait()

    @asynccontextmanager
    async def calls(self):
        async with open_channel(f"unix:{self._home.socket('runtime')}") as channel:
            calls = Calls(channel)
            request = cpb.GetCapabilitiesRequest()
            await calls.containers.GetCapabilities(request, wait_for_ready=True, timeout=30)
            yield calls


@pytest.fixture
async def service(home):
    async with docker_engine(home):
        service = Service(home)
        await service.begin()
        yield service
        await service.end(signal.SIGTERM)


async def resumed(calls: Calls, execution_id: str, output: bytearray) -> epb.Execution | None:
    """Watches from where `output` ends; the end, or `None` when the stream broke."""
    request = epb.WatchExecutionRequest(execution_id=execution_id, stdout_offset=len(output))
    try:
        async for event in calls.executions.WatchExecution(request):
            if event.HasField("output"):
                assert event.output.offset == len(output)
                output += event.output.data
            elif event.HasField("ended"):
                return event.ended
    except grpc.aio.AioRpcError as error:
        assert error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
    return None


@pytest.mark.timeout(120)
async def test_kill_9_loses_no_byte_of_output(service):
    script = """
        echo once >> /workspace/runs
        for part in $(seq 100); do seq $part 20000; sleep 0.1; done; exit 6
    """
    expected = b"".join(
        "".join(f"{n}\n" for n in range(part, 20001)).encode() for part in range(1, 101)
    )
    output, ended = bytearray(), None
    async with service.calls() as calls:
        container = (await calls.create()).id
        await calls.start(container, script, execution_id="exec_long")
    for _ in range(2):
        async with service.calls() as calls:
            watching = asyncio.create_task(resumed(calls, "exec_long", output))
            await asyncio.wait([watching], timeout=1)
            await service.end(signal.SIGKILL)
            ended = await watching
            assert ended is None
        await service.begin()
    async with service.calls() as calls:
        again = await calls.start(container, script, execution_id="exec_long")
        assert again.id == "exec_long"
        ended = await resumed(calls, "exec_long", output)
        assert ended is not None and ended.outcome.exited.code == 6
        assert digest(bytes(output)) == digest(expected)
        assert ended.stdout.total_bytes == len(expected)
        assert (await calls.run(container, "cat runs")).stdout.head == b"once\n"


async def test_kill_9_in_a_storm_of_starts_runs_nothing_twice(service):
    async with service.calls() as calls:
        container = (await calls.create()).id
    names = [f"exec_{number}" for number in range(300)]

    async def begin(calls: Calls, name: str) -> bool:
        request = start(container, f"echo {name} >> /workspace/runs", execution_id=name)
        try:
            await calls.executions.StartExecution(request, timeout=20)
        except grpc.aio.AioRpcError:
            return False
        return True

    async with service.calls() as calls:
        storm = [asyncio.create_task(begin(calls, name)) for name in names]
        await asyncio.wait(storm, return_when=asyncio.FIRST_COMPLETED)
        await service.end(signal.SIGKILL)
        accepted = await asyncio.gather(*storm)
    assert not all(accepted)
    await service.begin()
    async with service.calls() as calls:
        assert all(await asyncio.gather(*(begin(calls, name) for name in names)))
        ended = await asyncio.gather(*(calls.wait(name) for name in names))
        assert {each.outcome.WhichOneof("kind") for each in ended} == {"exited"}
        runs = await calls.read(container, "/workspace/runs")
        assert sorted(runs.decode().split()) == sorted(names)


async def test_kill_9_while_a_container_is_made_leaves_nothing(service, home):
    async with service.calls() as calls:
        making = asyncio.create_task(calls.create())
        await asyncio.wait([making], timeout=0.15)
        await service.end(signal.SIGKILL)
        await asyncio.gather(making, return_exceptions=True)
    await service.begin()
    async with service.calls() as calls:
        request = cpb.ListContainersRequest()
        kept = (await calls.containers.ListContainers(request)).containers
        async with docker_engine_list(home) as listed:
            assert len(listed) == len(kept) <= 1


@asynccontextmanager
async def docker_engine_list(home):
    from container_runtime.docker import DockerEngine
    from container_runtime.installation import INSTALLATION_LABEL

    async with DockerEngine.connected() as engine:
        yield await engine.list({INSTALLATION_LABEL: home.installation_id()})


async def test_a_stopped_service_ends_streams_with_a_status_and_commands_go_on(service):
    async with service.calls() as calls:
        container = (await calls.create()).id
        await calls.start(container, "sleep 2; echo after", execution_id="exec_1")
        request = epb.WatchExecutionRequest(execution_id="exec_1")
        watch = calls.executions.WatchExecution(request)
        await watch.initial_metadata()
        stopping = asyncio.create_task(service.end(signal.SIGTERM))
        with pytest.raises(grpc.aio.AioRpcError) as cut:
            await watch.read()
        assert cut.value.code() == grpc.StatusCode.UNAVAILABLE
        assert await stopping == 0
    await service.begin()
    async with service.calls() as calls:
        seen = await calls.watch("exec_1")
        assert seen.stdout == b"after\n"
        assert seen.ended.outcome.exited.code == 0
