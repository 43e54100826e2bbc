import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import timedelta

import pytest

from orchestrator.models.chat import ChatProtocol
from orchestrator.models.clients import Endpoint, HttpClients, Limits
from orchestrator.models.http import ModelServer
from orchestrator.models.responses import ResponsesProtocol
from orchestrator.models.retry import Retries, RetryPolicy
from orchestrator.models.server_model import ServerModel, WireProtocol
from tests.orchestrator.models.server import RunningServer, running_server

KEY = "sk-secret-0123456789"
PROTOCOLS: dict[str, Callable[[], WireProtocol]] = {
    "responses": ResponsesProtocol,
    "chat": ChatProtocol,
}
MakeModel = Callable[..., ServerModel]


class FakeClock:
    """Time that passes only by sleeping."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds
        await asyncio.sleep(0)


@pytest.fixture
async def server() -> AsyncIterator[RunningServer]:
    async with running_server() as server:
        yield server


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def make_model(server: RunningServer, clock: FakeClock) -> AsyncIterator[MakeModel]:
    """Makes models of a protocol at the test's server, or elsewhere."""
    limits = Limits(
        connect=timedelta(seconds=5), idle=timedelta(seconds=10), settle=timedelta(seconds=5)
    )
    async with HttpClients.open(limits) as clients:

        def make(
            protocol: str,
            *,
            base_url: str | None = None,
            api_key: str = KEY,
            attempts: int = 3,
            policy: RetryPolicy | None = None,
            answer: timedelta = timedelta(hours=1),
            settle: timedelta = timedelta(seconds=5),
        ) -> ServerModel:
            endpoint = Endpoint(base_url or server.base_url, api_key)
            used = Limits(answer=answer, settle=settle)
            retries = Retries(
                policy or RetryPolicy(attempts=attempts),
                clock=clock,
                sleep=clock.sleep,
                chance=lambda: 0.0,
            )
            there = ModelServer(clients, endpoint, used, clock=clock)
            return ServerModel(there, PROTOCOLS[protocol](), retries)

        yield make
