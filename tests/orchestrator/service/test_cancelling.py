"""What cancelling ends, wherever the turn is."""

import asyncio

from tests.orchestrator.fakes import ModelServer
from tests.orchestrator.service.conftest import (
    Peers,
    calls,
    heard,
    items,
    kinds,
    scripted,
    submit,
    until,
)
from workroom.client import Client
from workroom.orchestrator.v1 import sessions_pb2 as pb
from workroom.orchestrator.v1 import turns_pb2


async def cancel(client: Client, session_id: str) -> list[turns_pb2.Turn]:
    answer = await client.sessions.CancelTurn(pb.CancelTurnRequest(session_id=session_id))
    return list(answer.turns)


async def test_a_command_is_ended_with_the_turn(client: Client, peers: Peers):
    created = await client.sessions.CreateSession(scripted(calls("echo begun; sleep 60")))
    session_id = created.session.id
    await until(lambda: bool(peers.runtime.starts))
    (turn,) = await cancel(client, session_id)
    assert turn.state == turns_pb2.Turn.STATE_CANCELLED
    assert turn.HasField("end_time")
    assert all(e.outcome is not None for e in peers.runtime.executions.values())
    assert kinds(await heard(client, session_id))[-3:] == [
        "item_done",
        "turn_cancelled",
        "session_idle",
    ]
    command = (await items(client, session_id))[-1]
    assert command.state == turns_pb2.Item.STATE_INCOMPLETE
    assert command.command_execution.ended == "cancelled"
    await submit(client, session_id, "again")
    assert await cancel(client, session_id)


async def test_a_model_call_is_dropped_with_the_turn(peers: Peers):
    async with ModelServer().serving() as server:
        settings = {"model_base_url": server.address, "model": "m"}
        async with peers.orchestrator(**settings) as (_, client):
            request = pb.CreateSessionRequest()
            request.input.add(text="go")
            created = await client.sessions.CreateSession(request)
            async with asyncio.timeout(10):
                await server.waiting.wait()
                (turn,) = await cancel(client, created.session.id)
                await server.gone.wait()
            assert turn.state == turns_pb2.Turn.STATE_CANCELLED
            server.answers, server.requests = ["Here."], 0
            server.may_answer.set()
            await submit(client, created.session.id)
            assert kinds(await heard(client, created.session.id))[-2:] == [
                "turn_completed",
                "session_idle",
            ]


async def test_turns_that_wait_are_cancelled_too(client: Client, peers: Peers):
    created = await client.sessions.CreateSession(scripted(calls("sleep 60")))
    waiting = [await submit(client, created.session.id) for _ in range(3)]
    await until(lambda: bool(peers.runtime.starts))
    turns = await cancel(client, created.session.id)
    assert [turn.id for turn in turns] == [created.turn_id, *waiting]
    assert {turn.state for turn in turns} == {turns_pb2.Turn.STATE_CANCELLED}
    assert kinds(await heard(client, created.session.id)).count("session_idle") == 1


async def test_cancelling_nothing_does_nothing(client: Client):
    created = await client.sessions.CreateSession(scripted(calls("true")))
    events = await heard(client, created.session.id)
    assert await cancel(client, created.session.id) == []
    assert await heard(client, created.session.id) == [e for e in events if e.sequence_number]


async def test_cancelling_at_any_moment_leaves_a_session_that_works(client: Client, peers: Peers):
    script = calls("echo a", "echo b")
    for delay in range(0, 60, 6):
        created = await client.sessions.CreateSession(scripted(script))
        await asyncio.sleep(delay / 1000)
        await cancel(client, created.session.id)
        events = await heard(client, created.session.id)
        assert kinds(events).count("session_idle") == 1
        endings = [kind for kind in kinds(events) if kind in ("turn_completed", "turn_cancelled")]
        assert len(endings) == 1
        assert all(
            item.state != turns_pb2.Item.STATE_IN_PROGRESS
            for item in await items(client, created.session.id)
        )
