"""Several orchestrators on one PostgreSQL: each turn is worked on by one, whoever that is."""

import asyncio
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack

import pytest

from tests.orchestrator.service.conftest import Peers, calls, heard, items, kinds, scripted, submit
from tests.orchestrator.service.process import Process
from tests.postgres import Cluster
from workroom.client import Client
from workroom.orchestrator.v1 import events_pb2, turns_pb2
from workroom.orchestrator.v1 import sessions_pb2 as pb

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

SLOW = calls("for i in 1 2 3 4 5 6 7 8 9; do echo $i; sleep 0.3; done")
ENDLESS = calls("echo here; sleep 600")


@pytest.fixture
def database_url(cluster: Callable[[], Cluster]) -> str:
    return cluster().database("leases")


class Pair:
    """Two orchestrators on one database."""

    def __init__(self, peers: Peers, clients: AsyncExitStack) -> None:
        self.peers = peers
        self.first = Process(peers, "first")
        self.second = Process(peers, "second")
        self._clients = clients

    async def client(self, process: Process) -> Client:
        return await self._clients.enter_async_context(process.client())


@pytest.fixture
async def pair(peers: Peers) -> AsyncIterator[Pair]:
    async with AsyncExitStack() as clients:
        pair = Pair(peers, clients)
        try:
            await asyncio.gather(pair.first.start(), pair.second.start())
            yield pair
        finally:
            await pair.first.kill()
            await pair.second.kill()


async def until_output(client: Client, session_id: str) -> int:
    """Returns once a command has said something; the last durable event before that."""
    async for event in client.events(session_id):
        if event.HasField("command_output_delta"):
            return event.after_sequence_number
    raise AssertionError("the watch ended before a command spoke")


async def create(client: Client, script: str, text: str = "go") -> str:
    return (await client.sessions.CreateSession(scripted(script, text))).session.id


def assert_whole(events: list[events_pb2.Event], ending: str) -> None:
    """Every durable event once, and one end."""
    numbers = [event.sequence_number for event in events if event.sequence_number]
    assert numbers == list(range(1, len(numbers) + 1))
    told = kinds([event for event in events if event.sequence_number])
    assert told.count(ending) == 1
    done = [event.item_done.item.id for event in events if event.HasField("item_done")]
    assert len(done) == len(set(done))


async def test_sessions_are_served_by_either(pair: Pair):
    first, second = await pair.client(pair.first), await pair.client(pair.second)
    made = [
        await create(client, calls("echo $$ > /dev/null"))
        for client in (first, second)
        for _ in range(5)
    ]
    for number, session_id in enumerate(made):
        client, other = (first, second) if number % 2 else (second, first)
        assert_whole(await heard(client, session_id), "turn_completed")
        await submit(other, session_id)
        events = await heard(client, session_id)
        assert kinds(events).count("turn_completed") + kinds(events).count("turn_failed") == 2
    starts = pair.peers.runtime.starts
    assert len(starts) == len(set(starts)) >= len(made)


async def test_who_watches_elsewhere_hears_every_durable_event_while_it_happens(pair: Pair):
    first, second = await pair.client(pair.first), await pair.client(pair.second)
    session_id = await create(first, SLOW)
    await until_output(first, session_id)
    events = await heard(second, session_id)
    assert_whole(events, "turn_completed")
    assert events[-1].HasField("session_idle")


async def test_the_other_goes_on_when_the_holder_is_killed(pair: Pair):
    first, second = await pair.client(pair.first), await pair.client(pair.second)
    session_id = await create(first, SLOW)
    watching = asyncio.ensure_future(heard(second, session_id))
    await until_output(first, session_id)
    await pair.first.kill()
    assert_whole(await watching, "turn_completed")
    assert len(pair.peers.runtime.starts) == 1
    (command,) = [i for i in await items(second, session_id) if i.HasField("command_execution")]
    assert command.command_execution.stdout == "".join(f"{i}\n" for i in range(1, 10))


async def test_a_holder_that_was_paused_writes_nothing_when_it_goes_on(pair: Pair):
    first, second = await pair.client(pair.first), await pair.client(pair.second)
    session_id = await create(first, SLOW)
    await until_output(first, session_id)
    pair.first.send(signal.SIGSTOP)
    events = await heard(second, session_id)
    assert_whole(events, "turn_completed")
    pair.first.send(signal.SIGCONT)
    async with asyncio.timeout(30):
        while "another orchestrator works on the session" not in pair.first.logged():  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    durable = [event for event in events if event.sequence_number]
    assert await heard(first, session_id) == durable
    assert len(pair.peers.runtime.starts) == 1
    await submit(first, session_id)
    assert kinds(await heard(first, session_id)).count("turn_created") == 2


async def test_a_turn_is_cancelled_from_where_it_is_not_worked_on(pair: Pair):
    first, second = await pair.client(pair.first), await pair.client(pair.second)
    session_id = await create(first, ENDLESS)
    await until_output(first, session_id)
    cancelled = await second.sessions.CancelTurn(pb.CancelTurnRequest(session_id=session_id))
    (turn,) = cancelled.turns
    assert turn.state == turns_pb2.Turn.STATE_CANCELLED
    assert_whole(await heard(second, session_id), "turn_cancelled")


async def test_a_session_is_deleted_from_where_it_is_not_worked_on(pair: Pair):
    first, second = await pair.client(pair.first), await pair.client(pair.second)
    session_id = await create(first, ENDLESS)
    watching = asyncio.ensure_future(heard(first, session_id))
    await until_output(first, session_id)
    await second.sessions.DeleteSession(pb.DeleteSessionRequest(session_id=session_id))
    async with asyncio.timeout(20):
        await watching
        while pair.peers.runtime.containers:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def test_a_turn_goes_on_after_the_database_was_away(
    pair: Pair, cluster: Callable[[], Cluster]
):
    first = await pair.client(pair.first)
    session_id = await create(first, SLOW)
    last = await until_output(first, session_id)
    cluster().disconnect("leases")
    second = await pair.client(pair.second)
    rest = await heard(second, session_id, after=last)
    assert rest[-1].HasField("session_idle")
    assert_whole(await heard(first, session_id), "turn_completed")
    assert len(pair.peers.runtime.starts) == 1
