"""What the pool of warm containers promises."""

import asyncio
import os
from dataclasses import replace

import pytest

from container_runtime.config import Config
from container_runtime.engine import Image
from container_runtime.pool import parse_target
from tests.container_runtime.fakes import ENVIRONMENT, FakeEngine
from tests.container_runtime.node import node_on, seconds, until
from workroom.rpc.config import ConfigError
from workroom.runtime.v1 import containers_pb2 as cpb


class Engine(FakeEngine):
    """Counts what is made, and can have another image of the same name."""

    image_version = "base"

    async def image(self, name, pull_timeout):
        if name != "base":
            return await super().image(name, pull_timeout)
        return Image(self.image_version, ENVIRONMENT)


@pytest.fixture
async def engine(tmp_path):
    async with asyncio.TaskGroup() as tasks:
        engine = Engine(tmp_path, tasks)
        yield engine
        for engine_id in tuple(engine.containers):
            await engine.remove(engine_id)


def ready(node) -> list[str]:
    """Ids of the containers that wait."""
    return [each.id for waiting in node.runtime.pool._ready.values() for each in waiting]


async def filled(node, count: int) -> set[str]:
    await until(lambda: len(ready(node)) == count)
    return set(ready(node))


async def test_a_warm_container_is_handed_out_and_replaced(home, engine):
    async with node_on(home, engine, warm_pool=("base/small=1",)) as node:
        (warm,) = await filled(node, 1)
        assert node.runtime.containers.all() == []
        created = await node.calls.create()
        assert created.id == warm
        (other,) = await filled(node, 1)
        assert other != warm
    assert len(engine.containers) == 1, "those that wait end with the runtime"


async def test_a_claimed_container_cannot_be_told_from_one_that_was_made(home, engine):
    async with node_on(home, engine, warm_pool=("base/small=1",)) as node:
        (warm,) = await filled(node, 1)
        asked = {
            "project_id": "proj_1",
            "labels": {"a": "b"},
            "environment": [cpb.EnvironmentVariable(name="COLOUR", value="blue")],
            "idle_timeout": seconds(60),
            "request_id": "r",
        }
        claimed = await node.calls.create(**asked)
        assert claimed.id == warm
        cold = await node.calls.create(**asked | {"request_id": "s"})
        if cold.id in ready(node):
            pytest.fail("handed out twice")
        for told in (claimed, cold):
            assert (told.project_id, dict(told.labels)) == ("proj_1", {"a": "b"})
            assert told.expire_time.seconds - told.last_active_time.seconds == 60
            assert abs(told.create_time.seconds - told.last_active_time.seconds) <= 5
            done = await node.calls.run(told.id, "echo $COLOUR")
            assert done.stdout.head == b"blue\n"
        assert (await node.calls.create(**asked)).id == warm
        (there,) = [
            each
            for each in await engine.list({})
            if each.engine_id == node.runtime.containers.peek(warm).record.engine_id
        ]
        (other,) = [
            each
            for each in await engine.list({})
            if each.engine_id == node.runtime.containers.peek(cold.id).record.engine_id
        ]
        assert there.labels.keys() == other.labels.keys()


async def test_fifty_at_once_get_five_warm_ones_and_nobody_shares(home, engine):
    async with node_on(home, engine, warm_pool=("base/small=5",)) as node:
        warm = await filled(node, 5)
        node.runtime.pool._closed = True  # no refill, so that they can be counted
        created = await asyncio.gather(
            *(node.calls.containers.CreateContainer(small(), timeout=60) for _ in range(50))
        )
        ids = [answer.container.id for answer in created]
        assert len(set(ids)) == 50
        assert len(warm & set(ids)) == 5
        async with asyncio.TaskGroup() as tasks:
            for container_id in ids:
                tasks.create_task(node.calls.delete(container_id))


def small() -> cpb.CreateContainerRequest:
    return cpb.CreateContainerRequest(size=cpb.Container.SIZE_SMALL)


async def test_a_container_that_died_while_it_waited_is_not_handed_out(home, engine):
    async with node_on(home, engine, warm_pool=("base/small=1",)) as node:
        (warm,) = await filled(node, 1)
        (there,) = await engine.list({})
        os.kill(there.pid, 9)
        created = await node.calls.create()
        assert created.id != warm
        assert (await node.calls.run(created.id, "echo up")).stdout.head == b"up\n"


async def test_a_container_that_does_not_answer_is_not_handed_out(home, engine):
    async with node_on(home, engine, warm_pool=("base/small=1",)) as node:
        (warm,) = await filled(node, 1)
        (there,) = await engine.list({})
        os.kill(there.pid, 19)
        created = await node.calls.create()
        assert created.id != warm
        await until(lambda: there.engine_id not in engine.containers)


async def test_an_image_that_was_built_anew_drains_its_pool(home, engine):
    async with node_on(home, engine, warm_pool=("base/small=1",)) as node:
        (warm,) = await filled(node, 1)
        engine.image_version = "base-2"
        created = await node.calls.create()
        assert created.id != warm
        record = node.runtime.containers.peek(created.id).record
        assert record.image_reference == "base-2"
        await until(lambda: [each.record.image_reference for each in waiting(node)] == ["base-2"])


def waiting(node):
    return [each for kind in node.runtime.pool._ready.values() for each in kind]


async def test_the_pool_gives_way_when_the_node_is_full(home, engine):
    async with node_on(home, engine, warm_pool=("base/medium=2",), max_containers=2) as node:
        await filled(node, 2)
        created = await node.calls.create()
        assert created.size == cpb.Container.SIZE_SMALL
        assert len(ready(node)) == 1


async def test_a_killed_runtimes_pool_is_removed_by_the_next(home, engine):
    async with node_on(home, engine, warm_pool=("base/small=1",)) as node:
        await filled(node, 1)
        (left,) = waiting(node)
        node.runtime.pool._ready.clear()  # as if the process had been killed
        await left.link.close()
    assert len(engine.containers) == 1
    async with node_on(home, engine) as node:
        assert engine.containers == {}
        assert node.runtime.containers.all() == []


async def test_capabilities_tell_of_pools(home, engine):
    async with node_on(home, engine, warm_pool=("base/small=1",)) as node:
        await filled(node, 1)
        told = await node.calls.containers.GetCapabilities(cpb.GetCapabilitiesRequest())
        (pool,) = told.warm_pools
        assert (pool.image, pool.size, pool.target, pool.ready) == (
            "base",
            cpb.Container.SIZE_SMALL,
            1,
            1,
        )


def test_a_target_is_read_from_its_right_end():
    target = parse_target("registry.example/team/tools:1.2/large=3")
    assert (target.image, target.size, target.count) == (
        "registry.example/team/tools:1.2",
        "large",
        3,
    )


@pytest.mark.parametrize("value", ["base=2", "base/huge=1", "base/small=65", "base/small=x"])
def test_settings_that_make_no_pool_are_refused(value):
    with pytest.raises(ConfigError):
        Config.from_env({"RUNTIME_WARM_POOL": value})


def test_a_pool_named_twice_is_refused():
    with pytest.raises(ConfigError):
        Config.from_env({"RUNTIME_WARM_POOL": "base/small=1,base/small=2"})


def test_targets_are_values():
    assert replace(parse_target("base/small=1"), count=2) == parse_target("base/small=2")
