"""An environment that fell asleep says so, and is woken by the next turn with its files."""

from tests.orchestrator.service.conftest import (
    Peers,
    calls,
    container,
    heard,
    items,
    kinds,
    scripted,
    submit,
)
from workroom.client import Client
from workroom.orchestrator.v1 import environments_pb2
from workroom.orchestrator.v1 import sessions_pb2 as pb
from workroom.runtime.v1 import containers_pb2

KEEPS = calls("test -e kept && cat kept; echo from before > kept")


async def until_asleep(client: Client, session_id: str) -> int:
    async for event in client.events(session_id):
        if event.HasField("environment_suspended"):
            state = event.environment_suspended.environment.state
            assert state == environments_pb2.Environment.STATE_SUSPENDED
            return event.sequence_number
    raise AssertionError("the watch ended before the environment slept")


async def state_of(client: Client, session_id: str) -> pb.Session:
    return (await client.sessions.GetSession(pb.GetSessionRequest(session_id=session_id))).session


async def test_a_sleeping_environment_is_woken_by_the_next_turn(peers: Peers, client: Client):
    session_id = (await client.sessions.CreateSession(scripted(KEEPS))).session.id
    await heard(client, session_id)
    (container_id,) = peers.runtime.containers
    peers.runtime.suspend(container_id)
    last = await until_asleep(client, session_id)
    assert (await state_of(client, session_id)).state == pb.Session.STATE_IDLE
    await submit(client, session_id)
    events = await heard(client, session_id, after=last)
    told = kinds(events)
    assert told.index("turn_in_progress") < told.index("environment_ready")
    assert told[-1] == "session_idle" and "environment_suspended" not in told
    state = peers.runtime.containers[container_id].container.state
    assert state == containers_pb2.Container.STATE_ACTIVE
    said = [item.command_execution.stdout for item in await items(client, session_id)]
    assert "from before\n" in said
    assert container(peers).exists()


async def test_one_that_fell_asleep_while_we_were_away_is_told_of_later(peers: Peers):
    async with peers.orchestrator() as (_, client):
        session_id = (await client.sessions.CreateSession(scripted(KEEPS))).session.id
        await heard(client, session_id)
    (container_id,) = peers.runtime.containers
    peers.runtime.suspend(container_id)
    async with peers.orchestrator() as (_, client):
        await until_asleep(client, session_id)
        await submit(client, session_id)
        assert kinds(await heard(client, session_id)).count("environment_suspended") == 1


async def test_a_container_that_is_in_use_is_not_said_to_sleep(peers: Peers, client: Client):
    session_id = (await client.sessions.CreateSession(scripted(KEEPS))).session.id
    other = (await client.sessions.CreateSession(scripted(calls("sleep 600")))).session.id
    await heard(client, session_id)
    async for event in client.events(other):
        if event.HasField("item_added") and event.item_added.item.id.startswith("cmd_"):
            break
    of = {a.container.labels["workroom.session_id"]: n for n, a in peers.runtime.containers.items()}
    peers.runtime.suspend(of[other])  # heard of first, so that it has been passed over when
    peers.runtime.suspend(of[session_id])  # this one is written down
    await until_asleep(client, session_id)
    await client.sessions.CancelTurn(pb.CancelTurnRequest(session_id=other))
    assert "environment_suspended" not in kinds(await heard(client, other))
