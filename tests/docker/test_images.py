"""Images of others: none of ours, without a shell, a user or a workspace."""

import io
import tarfile
import uuid
from pathlib import Path

import aiodocker
import pytest

from container_runtime.creation import container_name
from workroom.runtime.v1 import executions_pb2 as epb

pytestmark = pytest.mark.docker

ENVIRONMENT = {
    "LD_PRELOAD": "/none.so",
    "LD_LIBRARY_PATH": "/none",
    "PYTHONHOME": "/none",
    "PYTHONPATH": "/none",
}


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


@pytest.fixture
async def hostile_image():
    """The base image with variables that would change the supervisor; removed by its id."""
    name = f"wr-test/{uuid.uuid4().hex}"
    variables = [f"{key}={value}" for key, value in ENVIRONMENT.items()]
    async with aiodocker.Docker() as docker:
        made = await docker.containers.create({"Image": "workroom/base:latest", "Env": variables})
        try:
            image_id = (await made.commit(repository=name, tag="latest"))["Id"]
        finally:
            await made.delete(force=True)
        yield f"{name}:latest"
        await docker.images.delete(image_id, force=True)


def environment_of(pid: int) -> bytes:
    """The environment that a process of the host began with."""
    return Path(f"/proc/{pid}/environ").read_bytes()


async def test_an_images_variables_reach_commands_and_not_the_supervisor(hostile_image, node):
    created = await node.calls.create(image=hostile_image)
    done = await node.calls.run(created.id, "export -p")
    for key, value in ENVIRONMENT.items():
        assert f'{key}="{value}"'.encode() in done.stdout.head
    async with aiodocker.Docker() as docker:
        main = await docker.containers.get(container_name(created.id))
        state = (await main.show())["State"]
    own = environment_of(state["Pid"])
    assert b"HOME=" in own
    assert not [key for key in ENVIRONMENT if f"{key}=".encode() in own]
    await node.calls.delete(created.id)
