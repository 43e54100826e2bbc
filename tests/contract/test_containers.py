"""What every engine must do for containers."""

import asyncio
import os
from datetime import timedelta

import grpc
import pytest

from container_runtime.installation import CONTAINER_LABEL
from tests.container_runtime.clocks import ClockAhead
from tests.container_runtime.node import details, node_on, reason, seconds, until
from workroom.runtime.v1 import containers_pb2 as cpb
from workroom.runtime.v1 import executions_pb2 as epb


async def gone(node, container_id: str) -> bool:
    listed = await node.engine.list({CONTAINER_LABEL: container_id})
    return not listed


async def test_a_container_is_told_as_it_was_asked_for(node):
    created = await node.calls.create(
        labels={"a": "b"}, project_id="proj_1", idle_timeout=seconds(60)
    )
    assert created.id.startswith("ctr_")
    assert created.state == cpb.Container.STATE_ACTIVE
    assert (created.image, created.project_id, dict(created.labels)) == (
        "base",
        "proj_1",
        {"a": "b"},
    )
    assert created.node_id == "node-under-test"
    assert created.expire_time.seconds - created.last_active_time.seconds == 60
    assert (await node.calls.get(created.id)).id == created.id


async def test_deleting_is_complete_and_can_be_repeated(node):
    created = await node.calls.create()
    await node.calls.run(created.id, "echo something")
    await node.calls.delete(created.id)
    await node.calls.delete(created.id)
    assert await gone(node, created.id)
    with pytest.raises(grpc.aio.AioRpcError) as missing:
        await node.calls.get(created.id)
    assert reason(missing.value) == "CONTAINER_NOT_FOUND"
    left = [str(path) for path in node.home.root.rglob("*") if created.id in str(path)]
    assert left == []


async def test_what_runs_in_a_deleted_container_is_lost_and_says_so(node):
    created = await node.calls.create()
    running = await node.calls.start(created.id, "echo begun; sleep 60")
    watching = asyncio.create_task(node.calls.watch(running.id))
    await until(lambda: node.runtime.executions.running_in(created.id))
    await node.calls.delete(created.id)
    seen = await watching
    assert seen.ended.outcome.WhichOneof("kind") == "container_lost"


async def test_a_container_that_dies_fails_and_its_commands_are_lost_at_once(node):
    created = await node.calls.create()
    running = await node.calls.start(created.id, "echo begun; sleep 60")
    waiting = asyncio.create_task(node.calls.wait(running.id))
    (there,) = await node.engine.list({CONTAINER_LABEL: created.id})
    os.kill(there.pid, 9)
    async with asyncio.timeout(3):
        lost = await waiting
    assert lost.outcome.container_lost.message
    await until(lambda: node.runtime.containers.get(created.id).record.failure)
    found = await node.calls.get(created.id)
    assert found.state == cpb.Container.STATE_FAILED
    assert found.failure
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await node.calls.run(created.id, "true")
    assert reason(refused.value) == "CONTAINER_NOT_ACTIVE"
    assert (await node.calls.execution(running.id)).outcome.HasField("container_lost")
    await node.calls.delete(created.id)


async def test_a_request_id_gives_the_same_container(node):
    first, second = await asyncio.gather(*(node.calls.create(request_id="r") for _ in range(2)))
    assert first.id == second.id
    with pytest.raises(grpc.aio.AioRpcError) as reused:
        await node.calls.create(request_id="r", labels={"other": "request"})
    assert reason(reused.value) == "REQUEST_ID_REUSED"
    await node.calls.delete(first.id)
    assert (await node.calls.create(request_id="r")).id != first.id


async def test_a_caller_that_leaves_leaves_nothing_behind(node):
    call = node.calls.containers.CreateContainer(cpb.CreateContainerRequest())
    await until(lambda: node.runtime.containers.all())
    call.cancel()
    await until(lambda: not node.runtime.containers.all())
    assert await node.engine.list(node.runtime.installation.labels()) == []


async def test_a_caller_that_leaves_can_come_back_by_its_request_id(node):
    request = cpb.CreateContainerRequest(request_id="r", size=cpb.Container.SIZE_SMALL)
    call = node.calls.containers.CreateContainer(request)
    await until(lambda: node.runtime.containers.all())
    (making,) = node.runtime.containers.all()
    call.cancel()
    assert (await node.calls.create(request_id="r")).id == making.id


async def test_containers_are_listed_by_label_in_pages(node):
    made = [await node.calls.create(labels={"n": str(n), "all": "yes"}) for n in range(3)]
    seen, token = [], ""
    while True:
        page = await node.calls.containers.ListContainers(
            cpb.ListContainersRequest(page_size=2, page_token=token, labels={"all": "yes"})
        )
        seen += [each.id for each in page.containers]
        token = page.next_page_token
        if not token:
            break
    assert seen == [each.id for each in made]
    only = await node.calls.containers.ListContainers(cpb.ListContainersRequest(labels={"n": "1"}))
    assert [each.id for each in only.containers] == [made[1].id]


async def test_an_unknown_image_is_not_found_and_the_cure_named(node):
    with pytest.raises(grpc.aio.AioRpcError) as missing:
        await node.calls.create(image="no-such-image")
    assert reason(missing.value) == "IMAGE_NOT_FOUND"
    assert node.runtime.containers.all() == []


async def test_a_full_node_says_so_and_when_to_come_again(home, engine):
    async with node_on(home, engine, max_containers=1) as node:
        created = await node.calls.create()
        with pytest.raises(grpc.aio.AioRpcError) as full:
            await node.calls.create()
        assert full.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert details(full.value).reason == "NODE_FULL"
        await node.calls.delete(created.id)
        await node.calls.create()


async def test_a_nearly_full_disk_takes_no_new_work(home, engine):
    async with node_on(home, engine) as node:
        created = await node.calls.create()
        running = await node.calls.start(created.id, "sleep 60")
    async with node_on(home, engine, min_free_bytes=2**62) as node:
        for call in (node.calls.create(), node.calls.run(created.id, "true")):
            with pytest.raises(grpc.aio.AioRpcError) as full:
                await call
            assert reason(full.value) == "DISK_FULL"
        assert (await node.calls.execution(running.id)).state == epb.Execution.STATE_RUNNING


async def test_an_idle_container_is_suspended_and_a_busy_one_is_not(home, engine):
    later = ClockAhead()
    async with node_on(
        home, engine, clock=later.now, reap_interval=timedelta(milliseconds=20)
    ) as node:
        idle, busy = [await node.calls.create(idle_timeout=seconds(10)) for _ in range(2)]
        await node.calls.start(busy.id, "sleep 60")
        later.ahead = 11
        await until(lambda: node.runtime.containers.peek(idle.id).state == "suspended")
        assert (await node.calls.get(busy.id)).state == cpb.Container.STATE_ACTIVE


async def test_capabilities_are_told(node):
    told = await node.calls.containers.GetCapabilities(cpb.GetCapabilitiesRequest())
    assert (told.default_image, told.max_containers, len(told.sizes)) == ("base", 100, 3)
    assert told.max_spool_bytes == 2**30


async def test_a_restarted_runtime_takes_up_what_goes_on(home, engine):
    async with node_on(home, engine) as node:
        created = await node.calls.create()
        ended = await node.calls.run(created.id, "echo before; exit 4")
        script = "for i in $(seq 40); do echo $i; sleep 0.05; done"
        running = await node.calls.start(created.id, script, execution_id="exec_long")
        early = await node.calls.run(created.id, "true", execution_id="exec_done")
    async with node_on(home, engine) as node:
        again = await node.calls.start(created.id, script, execution_id="exec_long")
        assert again.id == running.id
        seen = await node.calls.watch("exec_long")
        assert seen.stdout == "".join(f"{n}\n" for n in range(1, 41)).encode()
        assert seen.ended.outcome.exited.code == 0
        assert (await node.calls.execution("exec_done")) == early.execution
        old = await node.calls.watch(ended.execution.id)
        assert (old.stdout, old.ended.outcome.exited.code) == (b"before\n", 4)
        assert (await node.calls.get(created.id)).state == cpb.Container.STATE_ACTIVE


async def test_a_restarted_runtime_removes_orphans_and_fails_the_dead(home, engine):
    async with node_on(home, engine) as node:
        forgotten, dead = [await node.calls.create() for _ in range(2)]
        running = await node.calls.start(dead.id, "sleep 60")
        (there,) = await engine.list({CONTAINER_LABEL: dead.id})
        await node.runtime.containers._maker._store.delete_container(forgotten.id)
    await engine.remove(there.engine_id)
    async with node_on(home, engine) as node:
        assert await gone(node, forgotten.id)
        found = await node.calls.get(dead.id)
        assert found.state == cpb.Container.STATE_FAILED
        lost = await node.calls.execution(running.id)
        assert lost.outcome.WhichOneof("kind") == "container_lost"
