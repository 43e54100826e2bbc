"""Fixtures for tests that need a runtime; engines come and go with each test."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from container_runtime.docker import DockerEngine
from container_runtime.engine import Engine
from container_runtime.installation import INSTALLATION_LABEL
from tests.container_runtime.fakes import FakeEngine
from tests.container_runtime.node import Node, new_home, node_on
from workroom.paths import Home


@pytest.fixture
def home():
    with new_home() as home:
        yield home


@asynccontextmanager
async def fake_engine(directory: Path) -> AsyncIterator[FakeEngine]:
    """A fake engine whose containers end with the body."""
    async with asyncio.TaskGroup() as tasks:
        engine = FakeEngine(directory, tasks)
        try:
            yield engine
        finally:
            for engine_id in tuple(engine.containers):
                await engine.remove(engine_id)


@asynccontextmanager
async def docker_engine(home: Home) -> AsyncIterator[DockerEngine]:
    """The Docker engine; containers that `home`'s installation left are removed."""
    async with DockerEngine.connected() as engine:
        try:
            yield engine
        finally:
            for left in await engine.list({INSTALLATION_LABEL: home.installation_id()}):
                await engine.remove(left.engine_id)


@pytest.fixture
async def engine(request, home, tmp_path) -> AsyncIterator[Engine]:
    """The engine that the run was asked for; Docker for tests marked so."""
    wants_docker = request.node.get_closest_marker("docker") is not None
    if wants_docker or request.config.getoption("--engine") == "docker":
        async with docker_engine(home) as engine:
            yield engine
    else:
        async with fake_engine(tmp_path) as engine:
            yield engine


@pytest.fixture
async def node(home, engine) -> AsyncIterator[Node]:
    """A served runtime."""
    async with node_on(home, engine) as node:
        yield node


@pytest.fixture
async def container(node) -> AsyncIterator[str]:
    """The id of a small container."""
    created = await node.calls.create()
    yield created.id
    await node.calls.delete(created.id)
