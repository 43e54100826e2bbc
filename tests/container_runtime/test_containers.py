"""What becomes of containers when the engine lets us down; only a fake does that on demand."""

from datetime import timedelta

import grpc
import pytest

from container_runtime.errors import EngineUnavailable
from tests.container_runtime.node import node_on, reason, until
from workroom.runtime.v1 import containers_pb2 as cpb


async def test_an_engine_that_does_not_answer_is_told_of_and_leaves_nothing(node, engine):
    engine.unavailable = True
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await node.calls.create()
    assert reason(refused.value) == "ENGINE_UNAVAILABLE"
    engine.unavailable = False
    await node.runtime.containers.reap()
    assert node.runtime.containers.all() == []


async def test_what_could_not_be_undone_is_undone_later(home, engine):
    async with node_on(home, engine, reap_interval=timedelta(milliseconds=20)) as node:
        engine.refuse_start = True
        remove, engine.remove = engine.remove, broken
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await node.calls.create(request_id="r")
        assert reason(refused.value) == "ENGINE_REFUSED"
        (left,) = node.runtime.containers.all()
        assert (await node.calls.get(left.id)).state == cpb.Container.STATE_DELETING
        engine.refuse_start, engine.remove = False, remove
        await until(lambda: not node.runtime.containers.all())
        assert engine.containers == {}
        assert (await node.calls.create(request_id="r")).state == cpb.Container.STATE_ACTIVE


async def test_a_delete_that_failed_is_tried_again(home, engine):
    async with node_on(home, engine, reap_interval=timedelta(milliseconds=20)) as node:
        created = await node.calls.create()
        engine.unavailable = True
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await node.calls.delete(created.id)
        assert reason(refused.value) == "ENGINE_UNAVAILABLE"
        with pytest.raises(grpc.aio.AioRpcError) as inactive:
            await node.calls.run(created.id, "true")
        assert reason(inactive.value) == "CONTAINER_NOT_ACTIVE"
        engine.unavailable = False
        await until(lambda: engine.containers == {})


async def test_commands_go_on_while_the_engine_is_away(node, engine, container):
    engine.unavailable = True
    done = await node.calls.run(container, "echo on")
    assert done.stdout.head == b"on\n"
    engine.unavailable = False


async def broken(engine_id: str) -> None:
    raise EngineUnavailable("told to break")
