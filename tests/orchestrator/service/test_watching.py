"""What watchers see, whenever they come and however slow they are."""

import asyncio

import grpc
import pytest

from tests.orchestrator.service.conftest import (
    Peers,
    calls,
    container,
    heard,
    kinds,
    scripted,
    submit,
    until,
)
from workroom.client import Client
from workroom.errors import WorkroomError
from workroom.orchestrator.v1 import sessions_pb2 as pb
from workroom.rpc.channel import translate_errors

WAITING = "while [ ! -e /workspace/go ]; do sleep 0.02; done"


async def test_a_watcher_goes_on_after_any_number(client: Client):
    created = await client.sessions.CreateSession(scripted(calls("echo a")))
    whole = await heard(client, created.session.id)
    durable = [event for event in whole if event.sequence_number]
    for after in range(len(durable) + 1):
        rest = await heard(client, created.session.id, after)
        assert rest == durable[after:]


async def test_fifty_watchers_see_the_same(client: Client, peers: Peers):
    created = await client.sessions.CreateSession(scripted(calls(WAITING + "; seq 50")))
    async with asyncio.TaskGroup() as tasks:
        watching = [tasks.create_task(heard(client, created.session.id)) for _ in range(50)]
        await until(lambda: bool(peers.runtime.starts))
        container(peers).joinpath("workspace/go").touch()
    seen = [[e for e in task.result() if e.sequence_number] for task in watching]
    assert all(events == seen[0] for events in seen)
    assert kinds(seen[0])[-1] == "session_idle"


async def test_a_slow_watcher_loses_live_events_and_no_durable_one(client: Client, peers: Peers):
    loud = "i=0; while [ $i -lt 300 ]; do head -c 20000 /dev/zero | tr '\\0' x; i=$((i+1)); done"
    script = calls(loud, "sleep 0.5", fields="yield_time_ms: 20000")
    created = await client.sessions.CreateSession(scripted(script))
    session_id = created.session.id
    slow = aiter(
        client.sessions.WatchEvents(pb.WatchEventsRequest(session_id=session_id, until_idle=True))
    )
    first = await anext(slow)
    quick = await heard(client, session_id)
    rest = [response.event.sequence_number async for response in slow]
    numbers = [first.event.sequence_number, *(number for number in rest if number)]
    assert numbers == [event.sequence_number for event in quick if event.sequence_number]


async def test_who_comes_in_the_middle_of_output_is_told_that_something_is_missing(
    client: Client, peers: Peers
):
    script = calls(f"echo before; {WAITING}; echo after")
    created = await client.sessions.CreateSession(scripted(script))
    session_id = created.session.id
    early = client.events(session_id, until_idle=True)
    async for event in early:
        if event.HasField("command_output_delta"):
            break
    late = aiter(
        client.sessions.WatchEvents(pb.WatchEventsRequest(session_id=session_id, until_idle=True))
    )
    await anext(late)
    container(peers).joinpath("workspace/go").touch()
    deltas = [
        response.event.command_output_delta
        async for response in late
        if response.event.HasField("command_output_delta")
    ]
    assert [(delta.delta, delta.after_gap) for delta in deltas] == [("after\n", True)]


async def test_a_watch_until_idle_of_an_idle_session_ends_at_once(client: Client):
    created = await client.sessions.CreateSession(scripted(calls("true"), text=""))
    session_id = created.session.id
    assert kinds(await heard(client, session_id))[:2] == ["session_created", "environment_pending"]
    await submit(client, session_id)
    events = await heard(client, session_id)
    assert await heard(client, session_id, events[-1].sequence_number) == []


async def test_a_watch_until_idle_goes_past_an_idle_that_is_history(client: Client):
    created = await client.sessions.CreateSession(scripted(calls("true")))
    await heard(client, created.session.id)
    await submit(client, created.session.id)
    assert kinds(await heard(client, created.session.id)).count("session_idle") == 2


async def test_durable_only_leaves_out_live_events(client: Client):
    created = await client.sessions.CreateSession(scripted(calls("echo a")))
    watch = client.sessions.WatchEvents(
        pb.WatchEventsRequest(session_id=created.session.id, until_idle=True, durable_only=True)
    )
    assert all([response.event.sequence_number async for response in watch])


async def test_a_number_past_the_end_is_refused(client: Client):
    created = await client.sessions.CreateSession(scripted(calls("true")))
    await heard(client, created.session.id)
    for after, reason in ((99, "SEQUENCE_OUT_OF_RANGE"), (-1, "INVALID_FIELD")):
        with pytest.raises(WorkroomError) as raised:
            await heard(client, created.session.id, after)
        assert raised.value.reason == reason


async def test_deleting_a_session_ends_its_watches(client: Client, peers: Peers):
    created = await client.sessions.CreateSession(scripted(calls(WAITING)))
    watch = aiter(client.sessions.WatchEvents(pb.WatchEventsRequest(session_id=created.session.id)))
    await anext(watch)
    await client.sessions.DeleteSession(pb.DeleteSessionRequest(session_id=created.session.id))
    async with asyncio.timeout(10):
        assert [response async for response in watch]
    with pytest.raises(WorkroomError) as raised:
        await heard(client, created.session.id)
    assert raised.value.reason == "SESSION_NOT_FOUND"
    assert not peers.runtime.containers


async def test_a_stopping_orchestrator_tells_its_watchers_so(peers: Peers):
    watching = asyncio.Event()

    async def watch(client: Client, session_id: str) -> WorkroomError:
        request = pb.WatchEventsRequest(session_id=session_id)
        with pytest.raises(WorkroomError) as raised, translate_errors():
            async for _ in client.sessions.WatchEvents(request):
                watching.set()
        return raised.value

    async with (
        Client.connect(f"unix:{peers.home().socket('orchestrator')}") as outsider,
        asyncio.TaskGroup() as tasks,
    ):
        async with peers.orchestrator() as (_, client):
            created = await client.sessions.CreateSession(scripted(calls(WAITING)))
            ending = tasks.create_task(watch(outsider, created.session.id))
            await watching.wait()
        error = await ending
    assert error.code is grpc.StatusCode.UNAVAILABLE
    assert error.reason == "DRAINING"
