"""Fixtures: an orchestrator in this process over real sockets, with stand-ins for its peers."""

import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from orchestrator.composition import running
from orchestrator.config import Config
from tests.orchestrator.fake_egress import FakeEgress
from tests.orchestrator.fake_runtime import FakeRuntime
from tests.orchestrator.fakes import FakeReviewer
from workroom.client import Client
from workroom.orchestrator.v1 import sessions_pb2 as pb
from workroom.paths import Home
from workroom.rpc.server import Serving


@dataclass
class Peers:
    """The services around the orchestrator."""

    directory: Path
    runtime: FakeRuntime
    egress: FakeEgress
    reviewer: FakeReviewer

    def settings(self, **settings: object) -> dict[str, object]:
        return {
            "address": "127.0.0.1:0",
            "runtime_address": self.runtime.address,
            "egress_address": self.egress.address,
            "reviewer_address": self.reviewer.address,
            "key_file": self.directory / "key",
            "disk_reserve_bytes": 0,
        } | settings

    def home(self) -> Home:
        root = self.directory / "home"
        root.mkdir(exist_ok=True)
        return Home(root).create()

    @asynccontextmanager
    async def orchestrator(self, **settings: object) -> AsyncIterator[tuple[Serving, Client]]:
        config = Config.model_validate(self.settings(**settings))
        async with (
            running(config, self.home()) as serving,
            Client.connect(serving.address) as client,
        ):
            yield serving, client


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A temporary directory whose sockets' paths are short enough for the kernel."""
    path = Path(tempfile.mkdtemp(prefix="wr-"))
    yield path
    shutil.rmtree(path)


@pytest.fixture
async def peers(short_path: Path) -> AsyncIterator[Peers]:
    async with (
        FakeRuntime(short_path).serving() as runtime,
        FakeEgress(short_path).serving() as egress,
        FakeReviewer(short_path).serving() as reviewer,
    ):
        yield Peers(short_path, runtime, egress, reviewer)


@pytest.fixture
async def client(peers: Peers) -> AsyncIterator[Client]:
    async with peers.orchestrator() as (_, client):
        yield client


def scripted(yaml: str, text: str = "go", **fields: object) -> pb.CreateSessionRequest:
    """A request for a session that plays a script."""
    request = pb.CreateSessionRequest(**fields)
    request.agent.provider.script.name = "test"
    request.agent.provider.script.yaml = yaml
    if text:
        request.input.add(text=text)
    return request
