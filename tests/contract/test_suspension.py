"""What every engine must do for containers that sleep."""

import asyncio
import os
from datetime import timedelta

import grpc
import pytest

from container_runtime.installation import CONTAINER_LABEL
from tests.container_runtime.clocks import ClockAhead
from tests.container_runtime.node import node_on, reason, seconds, until
from workroom.runtime.v1 import containers_pb2 as cpb
from workroom.runtime.v1 import executions_pb2 as epb

State, Lost = cpb.Container, epb.ContainerLost
QUICK = {"reap_interval": timedelta(milliseconds=20)}


async def suspend(node, container_id: str, **fields) -> cpb.Container:
    request = cpb.SuspendContainerRequest(container_id=container_id, **fields)
    return (await node.calls.containers.SuspendContainer(request)).container


async def resume(node, container_id: str) -> cpb.Container:
    request = cpb.ResumeContainerRequest(container_id=container_id)
    return (await node.calls.containers.ResumeContainer(request)).container


async def output(node, container_id: str, script: str, **fields) -> str:
    done = await node.calls.run(container_id, script, **fields)
    assert done.execution.outcome.exited.code == 0, done
    return done.stdout.head.decode()


def state(node, container_id: str) -> str:
    return node.runtime.containers.peek(container_id).state


async def engine_pid(node, container_id: str) -> int:
    (there,) = await node.engine.list({CONTAINER_LABEL: container_id})
    return there.pid


async def test_a_suspended_container_keeps_its_files_and_wakes_at_the_next_command(node):
    created = await node.calls.create(
        labels={"a": "b"}, environment=[cpb.EnvironmentVariable(name="COLOUR", value="blue")]
    )
    await output(node, created.id, "echo kept > file")
    root = epb.Command.USER_ROOT
    await output(node, created.id, "echo layer > /var-file", user=root)
    asleep = await suspend(node, created.id)
    assert asleep.state == State.STATE_SUSPENDED
    assert asleep.delete_time.seconds - asleep.suspend_time.seconds == 7 * 24 * 3600
    assert await engine_pid(node, created.id) == 0
    assert (await suspend(node, created.id)).state == State.STATE_SUSPENDED
    assert await output(node, created.id, "cat file /var-file; echo $COLOUR") == (
        "kept\nlayer\nblue\n"
    )
    awake = await node.calls.get(created.id)
    assert (awake.state, dict(awake.labels)) == (State.STATE_ACTIVE, {"a": "b"})
    assert not awake.HasField("suspend_time")
    assert not awake.HasField("delete_time")


async def test_reading_a_file_wakes_a_container_once_for_all_who_come(node):
    created = await node.calls.create()
    await node.calls.write(created.id, "/workspace/file", b"kept")
    await suspend(node, created.id)
    reads = [node.calls.read(created.id, "/workspace/file") for _ in range(8)]
    assert await asyncio.gather(*reads) == [b"kept"] * 8
    kinds = [event.kind for event in await events_of(node, created.id)]
    assert kinds.count(cpb.ContainerEvent.KIND_RESUMED) == 1


async def test_what_ran_before_can_still_be_read_while_it_sleeps(node):
    created = await node.calls.create()
    done = await node.calls.run(created.id, "echo before")
    await suspend(node, created.id)
    seen = await node.calls.watch(done.execution.id)
    assert (seen.stdout, seen.ended.outcome.exited.code) == (b"before\n", 0)
    assert state(node, created.id) == "suspended"


async def test_a_busy_container_is_suspended_only_by_force(node):
    created = await node.calls.create()
    running = await node.calls.start(created.id, "echo begun; sleep 60")
    with pytest.raises(grpc.aio.AioRpcError) as busy:
        await suspend(node, created.id)
    assert reason(busy.value) == "CONTAINER_BUSY"
    assert (await suspend(node, created.id, force=True)).state == State.STATE_SUSPENDED
    lost = (await node.calls.wait(running.id)).outcome.container_lost
    assert lost.reason == Lost.REASON_SUSPENDED
    assert (await resume(node, created.id)).state == State.STATE_ACTIVE


async def test_a_silent_command_keeps_a_container_awake_and_silence_puts_it_to_sleep(home, engine):
    clock = ClockAhead()
    async with node_on(home, engine, clock=clock.now, **QUICK) as node:
        created = await node.calls.create(idle_timeout=seconds(10))
        running = await node.calls.start(created.id, "sleep 60")
        clock.ahead = 1000
        await asyncio.sleep(0.2)
        assert state(node, created.id) == "active"
        await node.calls.executions.CancelExecution(
            epb.CancelExecutionRequest(execution_id=running.id)
        )
        clock.ahead = 2000
        await until(lambda: state(node, created.id) == "suspended")


async def test_a_sleeping_container_is_deleted_when_its_retention_ends(home, engine):
    clock = ClockAhead()
    async with node_on(home, engine, clock=clock.now, **QUICK) as node:
        created = await node.calls.create(retention=seconds(60))
        await suspend(node, created.id)
        clock.ahead = 59
        await asyncio.sleep(0.1)
        assert state(node, created.id) == "suspended"
        clock.ahead = 62
        await until(lambda: not node.runtime.containers.all())
        assert await node.engine.list(node.runtime.installation.labels()) == []
        left = [str(path) for path in home.root.rglob("*") if created.id in str(path)]
        assert left == []


async def test_a_container_without_retention_is_deleted_instead(home, engine):
    clock = ClockAhead()
    async with node_on(home, engine, clock=clock.now, **QUICK) as node:
        created = await node.calls.create(retention=seconds(0), idle_timeout=seconds(10))
        clock.ahead = 11
        await until(lambda: not node.runtime.containers.all())
        kinds = [event.kind for event in await events_of(node, created.id)]
        assert cpb.ContainerEvent.KIND_SUSPENDED not in kinds


async def test_a_maximum_life_is_announced_and_ends_even_a_busy_container(home, engine):
    clock = ClockAhead()
    async with node_on(home, engine, clock=clock.now, **QUICK) as node:
        created = await node.calls.create(max_life=seconds(600))
        assert created.delete_time.seconds - created.create_time.seconds == 600
        running = await node.calls.start(created.id, "sleep 60")
        waiting = asyncio.create_task(node.calls.wait(running.id))
        await until(lambda: node.runtime.executions.running_in(created.id))
        clock.ahead = 601
        lost = (await waiting).outcome.container_lost
        assert lost.reason == Lost.REASON_DELETED
        await until(lambda: not node.runtime.containers.all())


async def test_a_restarted_runtime_still_knows_who_sleeps(home, engine):
    async with node_on(home, engine) as node:
        created = await node.calls.create()
        await output(node, created.id, "echo kept > file")
        await suspend(node, created.id)
    async with node_on(home, engine) as node:
        assert (await node.calls.get(created.id)).state == State.STATE_SUSPENDED
        assert await output(node, created.id, "cat file") == "kept\n"


async def test_what_went_down_while_the_runtime_was_away_can_be_resumed(home, engine):
    async with node_on(home, engine) as node:
        created = await node.calls.create()
        await output(node, created.id, "echo kept > file")
        running = await node.calls.start(created.id, "sleep 60")
        pid = await engine_pid(node, created.id)
    os.kill(pid, 9)
    (there,) = await engine.list({CONTAINER_LABEL: created.id})
    async with asyncio.timeout(5):
        while there.running:
            await asyncio.sleep(0.01)
            (there,) = await engine.list({CONTAINER_LABEL: created.id})
    async with node_on(home, engine) as node:
        lost = (await node.calls.execution(running.id)).outcome.container_lost
        assert lost.reason == Lost.REASON_INTERRUPTED
        assert await output(node, created.id, "cat file") == "kept\n"


async def test_a_full_node_lets_nobody_wake_until_there_is_room(home, engine):
    async with node_on(home, engine, max_containers=1) as node:
        first = await node.calls.create()
        await suspend(node, first.id)
        second = await node.calls.create()
        with pytest.raises(grpc.aio.AioRpcError) as full:
            await node.calls.run(first.id, "true")
        assert reason(full.value) == "NODE_FULL"
        assert state(node, first.id) == "suspended"
        await suspend(node, second.id)
        await output(node, first.id, "true")


async def test_as_many_sleep_as_the_node_keeps(home, engine):
    async with node_on(home, engine, max_suspended=1) as node:
        first = await node.calls.create()
        await suspend(node, first.id)
        with pytest.raises(grpc.aio.AioRpcError) as full:
            await node.calls.create()
        assert reason(full.value) == "NODE_FULL"
        await node.calls.delete(first.id)
        await node.calls.create()


async def test_a_container_whose_file_system_was_removed_fails_and_says_so(node):
    created = await node.calls.create()
    await suspend(node, created.id)
    (there,) = await node.engine.list({CONTAINER_LABEL: created.id})
    await node.engine.remove(there.engine_id)
    with pytest.raises(grpc.aio.AioRpcError):
        await node.calls.run(created.id, "true")
    found = await node.calls.get(created.id)
    assert found.state == State.STATE_FAILED
    assert found.failure


# Events


async def events_of(node, container_id: str = "", after: int = 0) -> list[cpb.ContainerEvent]:
    """All events up to the newest."""
    last, found = node.runtime.events.last, []
    request = cpb.WatchContainerEventsRequest(after_sequence=after)
    if after < last:
        async for message in node.calls.containers.WatchContainerEvents(request):
            found.append(message.event)
            if message.event.sequence == last:
                break
    return [event for event in found if container_id in ("", event.container_id)]


async def test_events_tell_a_life_in_order_and_are_numbered_without_gaps(home, engine):
    async with node_on(home, engine) as node:
        created = await node.calls.create()
        await suspend(node, created.id)
        await resume(node, created.id)
        os.kill(await engine_pid(node, created.id), 9)
        await until(lambda: state(node, created.id) == "failed")
        await node.calls.delete(created.id)
        seen = await events_of(node)
    kind = cpb.ContainerEvent
    assert [event.kind for event in seen] == [
        kind.KIND_CREATED,
        kind.KIND_ACTIVE,
        kind.KIND_SUSPENDED,
        kind.KIND_RESUMED,
        kind.KIND_FAILED,
        kind.KIND_DELETED,
    ]
    assert [event.sequence for event in seen] == list(range(1, 7))
    assert seen[4].message
    async with node_on(home, engine) as node:
        assert await events_of(node) == seen
        assert await events_of(node, after=4) == seen[4:]
        with pytest.raises(grpc.aio.AioRpcError) as gone:
            request = cpb.WatchContainerEventsRequest(after_sequence=7)
            await anext(aiter(node.calls.containers.WatchContainerEvents(request)))
        assert reason(gone.value) == "EVENTS_GONE"


async def test_a_watcher_without_a_number_sees_only_what_is_to_come(node):
    first = await node.calls.create()
    watch = node.calls.containers.WatchContainerEvents(
        cpb.WatchContainerEventsRequest(container_id=first.id)
    )
    await watch.initial_metadata()
    await node.calls.create()
    await node.calls.delete(first.id)
    async with asyncio.timeout(5):
        event = (await anext(aiter(watch))).event
    assert (event.kind, event.container_id) == (cpb.ContainerEvent.KIND_DELETED, first.id)
    watch.cancel()
