"""Fixtures of the orchestrator's tests: the runtime's stand-in, a container, a runner."""

from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest

from orchestrator.tools.runner import CommandRunner
from tests.orchestrator.fake_runtime import FakeRuntime
from workroom.rpc.channel import open_channel
from workroom.runtime.v1 import containers_pb2, containers_pb2_grpc


@pytest.fixture
async def fake_runtime(tmp_path: Path) -> AsyncIterator[FakeRuntime]:
    async with FakeRuntime(tmp_path).serving() as runtime:
        yield runtime


@pytest.fixture
async def runtime_channel(fake_runtime: FakeRuntime) -> AsyncIterator[grpc.aio.Channel]:
    async with open_channel(fake_runtime.address) as channel:
        yield channel


@pytest.fixture
async def container_id(runtime_channel: grpc.aio.Channel) -> str:
    stub = containers_pb2_grpc.ContainerServiceStub(runtime_channel)
    answer = await stub.CreateContainer(containers_pb2.CreateContainerRequest())
    return answer.container.id


@pytest.fixture
async def runner(runtime_channel: grpc.aio.Channel) -> AsyncIterator[CommandRunner]:
    async with CommandRunner(runtime_channel) as runner:
        yield runner
