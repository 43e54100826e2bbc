"""A container deleted while the engine makes it: the engine finishes, and still nothing is left."""

import asyncio

import grpc
import pytest

from container_runtime.installation import INSTALLATION_LABEL
from tests.container_runtime.node import Node
from workroom.runtime.v1 import containers_pb2 as cpb

pytestmark = [pytest.mark.docker, pytest.mark.timeout(90)]


async def test_a_container_deleted_while_it_is_made_is_gone(node):
    await asyncio.gather(*(made_and_deleted(node, delay) for delay in (0.0, 0.02, 0.05, 0.1, 0.2)))
    await asyncio.sleep(0.5)  # an engine that still made one would be done with it by now
    label = {INSTALLATION_LABEL: node.home.installation_id()}
    assert await node.engine.list(label) == []


async def made_and_deleted(node: Node, delay: float) -> None:
    request = cpb.CreateContainerRequest(
        request_id=f"after-{delay}",
        size=cpb.Container.SIZE_SMALL,
        labels={"after": str(delay)},
    )
    making = node.calls.containers.CreateContainer(request, timeout=60)
    found: list[cpb.Container] = []
    while not found:
        listing = cpb.ListContainersRequest(labels={"after": str(delay)})
        found.extend((await node.calls.containers.ListContainers(listing)).containers)
    await asyncio.sleep(delay)
    making.cancel()
    deletion = cpb.DeleteContainerRequest(container_id=found[0].id)
    await node.calls.containers.DeleteContainer(deletion, timeout=60)
    with pytest.raises((asyncio.CancelledError, grpc.aio.AioRpcError)):
        await making
