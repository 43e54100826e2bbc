"""What the orchestrator's tools need of the runtime, on the real one: the stand-in held to it."""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing
from datetime import timedelta
from itertools import count

import pytest

from container_runtime.__main__ import SERVICES, registrations
from container_runtime.config import Config
from container_runtime.docker import DockerEngine
from container_runtime.interpreter import Bundle
from container_runtime.runtime import running
from orchestrator.environments.environments import Environments
from orchestrator.records import Ended, Environment, EnvironmentFile, Exited, Size
from orchestrator.runtime_errors import ContainerGone, EnvironmentUnusable
from orchestrator.tools.followers import PlannedCommand
from orchestrator.tools.runner import CommandRunner
from tests.container_runtime.fixtures import docker_engine
from tests.container_runtime.node import collected, new_home
from tests.orchestrator.fake_egress import FakeEgress
from workroom.paths import Home
from workroom.rpc.channel import open_channel
from workroom.rpc.drain import Drain
from workroom.rpc.server import serving
from workroom.runtime.v1 import containers_pb2, containers_pb2_grpc

pytestmark = [pytest.mark.docker, pytest.mark.timeout(120)]

_numbers = count()
CSV = EnvironmentFile("/workspace/data/sales.csv", 16, "blob", description="What was sold.")


class RealRuntime:
    """A runtime in this process that can go away and come back at the same address."""

    def __init__(self, home: Home, engine: DockerEngine, bundle: Bundle) -> None:
        self.address = f"unix:{home.run}/tools.sock"
        self._home = home
        self._engine = engine
        self._bundle = bundle
        self._stack = AsyncExitStack()

    async def start(self) -> None:
        config = Config(node_id="tools", min_free_bytes=0, address=self.address)
        drain = Drain()
        runtime = await self._stack.enter_async_context(
            running(config, self._home, self._engine, bundle=self._bundle)
        )
        server = serving(
            registrations(runtime, drain),
            config.listener(self._home),
            services=SERVICES,
            grace=timedelta(seconds=0.2),
            drain=drain,
        )
        await self._stack.enter_async_context(server)

    async def stop(self) -> None:
        await self._stack.aclose()


@pytest.fixture
async def runtime() -> AsyncIterator[RealRuntime]:
    with new_home() as home:
        async with docker_engine(home) as engine:
            bundle = await asyncio.to_thread(collected)
            runtime = RealRuntime(home, engine, bundle)
            await runtime.start()
            yield runtime
            await runtime.stop()


@pytest.fixture
async def channel(runtime):
    async with open_channel(runtime.address) as channel:
        yield channel


@pytest.fixture
async def environments(channel, tmp_path):
    async with (
        FakeEgress(tmp_path).serving() as egress,
        open_channel(egress.address) as egress_channel,
    ):
        yield Environments(channel, egress_channel)


async def open_file(_: EnvironmentFile) -> AsyncIterator[bytes]:
    yield b"what,count\ntea,3"


def asked(**fields) -> Environment:
    return Environment("env_1", "sess_1", "default", size=Size.SMALL, files=(CSV,), **fields)


@pytest.fixture
async def container_id(environments) -> AsyncIterator[str]:
    made = await environments.prepare(asked(), session_id="sess_1", open_file=open_file)
    yield made
    await environments.dispose(made)


@pytest.fixture
async def runner(channel) -> AsyncIterator[CommandRunner]:
    async with CommandRunner(channel) as runner:
        yield runner


def planned(script: str, *, limit: int = 10_000, seconds: float = 60) -> PlannedCommand:
    number = next(_numbers)
    timeout = timedelta(seconds=seconds)
    name = f"exec_real_{number}"
    return PlannedCommand(f"cmd_{number}", name, script, "/workspace", timeout, limit)


async def results_of(runner: CommandRunner, container_id: str, *commands, **options):
    async with aclosing(runner.run(container_id, commands, **options)) as results:
        return [result async for result in results]


async def test_commands_do_what_the_stand_in_does(runner, container_id):
    coffee = "head -c 150000 /dev/zero | sed 's/\\x00/☕/g'"
    commands = [
        planned("echo out; echo err >&2; exit 3"),
        planned("seq 1 1000000", limit=1000),
        planned(coffee, limit=100_000),
        planned("echo before; sleep 60", seconds=0.5),
        planned("kill -9 $$"),
        planned("id -u; pwd; cat data/sales.csv"),
        planned("sleep 60 & echo left"),
    ]
    by_item = {
        result.item_id: result for result in await results_of(runner, container_id, *commands)
    }
    both, long, wide, late, killed, ordinary, left = (by_item[c.item_id] for c in commands)
    assert (left.outcome, left.stdout, left.output_held) == (Exited(0), "left\n", True)
    assert not ordinary.output_held
    assert both.outcome == Exited(3)
    assert (both.stdout, both.stderr) == ("out\n", "err\n") and both.duration is not None
    size = sum(len(f"{n}\n") for n in range(1, 1_000_001))
    assert f"\n[... {size - 1000} characters left out ...]\n" in long.stdout
    assert long.stdout.startswith("1\n2\n") and long.stdout.endswith("999999\n1000000\n")
    assert wide.stdout == "☕" * 50_000 + "\n[... 50000 characters left out ...]\n" + "☕" * 50_000
    assert late.outcome == Ended("timed out after 0.5 s and was ended")
    assert late.stdout == "before\n"
    assert killed.outcome is not None and killed.outcome.kind == "signalled"
    assert ordinary.stdout == "1000\n/workspace\nwhat,count\ntea,3"


async def test_a_flood_is_bounded_and_ends_in_time(runner, container_id):
    deltas: list[bool] = []
    [result] = await results_of(
        runner, container_id, planned("yes", seconds=3), on_delta=lambda *d: deltas.append(d[3])
    )
    assert isinstance(result.outcome, Ended) and "timed out" in result.outcome.words
    assert result.stdout.startswith("y\ny\n") and " left out ...]" in result.stdout
    assert any(deltas) and len(deltas) < 300


async def test_nothing_is_lost_or_doubled_when_the_runtime_goes_and_comes_back(
    runner, container_id, runtime
):
    script = "for n in $(seq 1 800); do echo line $n; echo error $n >&2; sleep 0.002; done"
    commands = [planned(script, limit=100_000) for _ in range(2)]
    texts = {command.item_id: "" for command in commands}

    def on_delta(item_id: str, is_stderr: bool, text: str, after_gap: bool) -> None:
        texts[item_id] += "" if is_stderr else text

    async def restart() -> None:
        for number in (1, 2):
            async with asyncio.timeout(60):
                while len(texts[commands[0].item_id]) < 3_000 * number:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            await runtime.stop()
            await runtime.start()

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(restart())
        results = await results_of(runner, container_id, *commands, on_delta=on_delta)
    out = "".join(f"line {n}\n" for n in range(1, 801))
    err = "".join(f"error {n}\n" for n in range(1, 801))
    for result in results:
        assert result.outcome == Exited(0)
        assert (result.stdout, result.stderr) == (out, err)
        assert texts[result.item_id] == out


async def test_a_yielded_command_is_followed_again_and_can_be_cancelled(runner, container_id):
    command = planned("echo once >> runs; cat runs; sleep 60")
    [first] = await results_of(runner, container_id, command, yield_time=timedelta(seconds=0.3))
    assert first.still_running
    async with asyncio.TaskGroup() as tasks:
        again = tasks.create_task(results_of(runner, container_id, command))
        await asyncio.sleep(0)
        await runner.cancel([command.execution_id, "exec_unknown"])
    [result] = again.result()
    assert result.outcome == Ended("cancelled") and result.stdout == "once\n"


async def test_an_environment_is_described_and_its_outputs_come_out(
    environments, runner, container_id
):
    assert await environments.data_map(container_id, (CSV,)) == (
        "- /workspace/data/sales.csv (16 bytes, CSV)\n"
        "  What was sold.\n"
        "  1 rows; columns: what text, count integer"
    )
    script = (
        "mkdir -p outputs/a/b; head -c 3000000 /dev/urandom > outputs/a/b/big;"
        " ln -s /etc/passwd outputs/link; sha256sum < outputs/a/b/big"
    )
    [result] = await results_of(runner, container_id, planned(script))
    [file] = await environments.outputs(container_id)
    assert (file.path, file.size_bytes) == ("/workspace/outputs/a/b/big", 3_000_000)
    digest = hashlib.sha256()
    async for piece in environments.read_file(container_id, file.raw):
        digest.update(piece)
    assert result.stdout.split()[0] == digest.hexdigest()


async def test_a_suspended_container_is_not_gone(environments, runner, container_id, channel):
    [before] = await results_of(runner, container_id, planned("echo kept > here"))
    assert before.succeeded
    request = containers_pb2.SuspendContainerRequest(container_id=container_id)
    await containers_pb2_grpc.ContainerServiceStub(channel).SuspendContainer(request)
    await environments.check(container_id)
    [after] = await results_of(runner, container_id, planned("cat here"))
    assert after.stdout == "kept\n"


async def test_preparing_again_is_the_same_container_until_it_is_gone(environments, container_id):
    again = await environments.prepare(asked(), session_id="sess_1", open_file=open_file)
    assert again == container_id

    async def nobody() -> set[str]:
        return set()

    assert await environments.sweep(nobody) == 1
    with pytest.raises(ContainerGone):
        await environments.check(container_id)


async def test_an_image_that_is_not_there_is_told_with_what_to_do(environments):
    with pytest.raises(EnvironmentUnusable, match="name an image"):
        await environments.prepare(
            asked(image="workroom.invalid/none:1"), session_id="sess_1", open_file=open_file
        )
