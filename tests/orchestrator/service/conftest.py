"""Fixtures: an orchestrator in this process over real sockets, with stand-ins for its peers."""

import asyncio
import json
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from orchestrator.composition import running
from orchestrator.config import Config
from tests.orchestrator.fake_egress import FakeEgress
from tests.orchestrator.fake_runtime import FakeRuntime
from tests.orchestrator.fakes import FakeReviewer
from workroom.client import Client
from workroom.errors import WorkroomError
from workroom.orchestrator.v1 import events_pb2, turns_pb2
from workroom.orchestrator.v1 import sessions_pb2 as pb
from workroom.paths import Home
from workroom.rpc.channel import translate_errors
from workroom.rpc.server import Serving


@dataclass
class Peers:
    """The services around the orchestrator."""

    directory: Path
    runtime: FakeRuntime
    egress: FakeEgress
    reviewer: FakeReviewer
    database_url: str = ""

    def settings(self, **settings: object) -> dict[str, object]:
        return {
            "address": "127.0.0.1:0",
            "runtime_address": self.runtime.address,
            "egress_address": self.egress.address,
            "reviewer_address": self.reviewer.address,
            "key_file": self.directory / "key",
            "database_url": self.database_url,
            "lease_time": timedelta(seconds=2),
            "disk_reserve_bytes": 0,
        } | settings

    def home(self, name: str = "home") -> Home:
        root = self.directory / name
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
async def peers(short_path: Path, database_url: str) -> AsyncIterator[Peers]:
    async with (
        FakeRuntime(short_path).serving() as runtime,
        FakeEgress(short_path).serving() as egress,
        FakeReviewer(short_path).serving() as reviewer,  # type: ignore[abstract]
    ):
        yield Peers(short_path, runtime, egress, reviewer, database_url)


@pytest.fixture
async def client(peers: Peers) -> AsyncIterator[Client]:
    async with peers.orchestrator() as (_, client):
        yield client


def scripted(yaml: str, text: str = "go", **fields: Any) -> pb.CreateSessionRequest:
    """A request for a session that plays a script."""
    request = pb.CreateSessionRequest(**fields)
    request.agent.provider.script.name = "test"
    request.agent.provider.script.yaml = yaml
    if text:
        request.input.add(text=text)
    return request


def calls(*commands: str, fields: str = "") -> str:
    """A script that runs commands in one call and then answers."""
    listed = "".join(f"                - command: {json.dumps(command)}\n" for command in commands)
    extra = f"              {fields}\n" if fields else ""
    return (
        "script: calls\nturns:\n  - steps:\n      - calls:\n          - name: shell\n"
        f"            arguments:\n{extra}              commands:\n{listed}"
        "      - answer: Done.\n"
    )


def container(peers: Peers) -> Path:
    """The directory that stands for the only container."""
    (container_id,) = peers.runtime.containers
    return peers.runtime.root(container_id)


async def heard(client: Client, session_id: str, after: int = 0) -> list[events_pb2.Event]:
    return [e async for e in client.events(session_id, after=after, until_idle=True)]


def kinds(events: Sequence[events_pb2.Event]) -> list[str]:
    return [str(event.WhichOneof("payload")) for event in events]


async def items(client: Client, session_id: str) -> Sequence[turns_pb2.Item]:
    page = await client.sessions.ListItems(
        pb.ListItemsRequest(session_id=session_id, page_size=100)
    )
    return page.items


async def submit(client: Client, session_id: str, text: str = "go", request_id: str = "") -> str:
    """Gives input; returns the turn's id."""
    request = pb.SubmitInputRequest(session_id=session_id, request_id=request_id)
    request.input.add(text=text)
    return (await client.sessions.SubmitInput(request)).turn.id


async def until(condition: Callable[[], bool], seconds: float = 10) -> None:
    """Waits until the condition holds."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def refusal(call) -> WorkroomError:
    """What a call is refused with."""
    with pytest.raises(WorkroomError) as raised, translate_errors():
        await call
    return raised.value
