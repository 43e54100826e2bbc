"""Images of others: none of ours, without a shell, a user or a workspace."""

import io
import tarfile
import uuid

import aiodocker
import pytest

from workroom.runtime.v1 import executions_pb2 as epb

pytestmark = pytest.mark.docker


@pytest.fixture
async def empty_image():
    """An image with nothing in it; removed by its id."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w"):
        pass
    name = f"wr-test/{uuid.uuid4().hex}:latest"
    async with aiodocker.Docker() as docker:
        image_id = ""
        async with docker._query(
            "images/create",
            "POST",
            params={"fromSrc": "-", "repo": name.partition(":")[0], "tag": "latest"},
            data=archive.getvalue(),
            headers={"Content-Type": "application/x-tar"},
        ) as response:
            await response.read()
        image_id = (await docker.images.inspect(name))["Id"]
        yield name
        await docker.images.delete(image_id, force=True)


async def test_an_empty_image_runs_the_supervisor_and_says_what_it_lacks(node, empty_image):
    created = await node.calls.create(image=empty_image)
    script = await node.calls.run(created.id, "true")
    assert script.execution.outcome.start_failed.stage == epb.StartFailed.STAGE_SHELL
    program = await node.calls.run(created.id, ["true"])
    assert program.execution.outcome.start_failed.errno == 2
    await node.calls.write(created.id, "/workspace/f", b"kept")
    assert await node.calls.read(created.id, "/workspace/f") == b"kept"
    await node.calls.delete(created.id)
