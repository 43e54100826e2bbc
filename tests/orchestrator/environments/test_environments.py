import os
import sqlite3
from collections.abc import AsyncIterator

import pytest

from orchestrator.environments import environments as module
from orchestrator.environments.environments import Environments
from orchestrator.records import Access, Environment, EnvironmentFile, NetworkPolicy
from orchestrator.runtime_errors import (
    ContainerGone,
    EgressUnavailable,
    EnvironmentUnusable,
    RuntimeUnavailable,
)
from tests.orchestrator.fake_egress import FakeEgress
from workroom.errors import WorkroomError
from workroom.rpc.channel import open_channel

CSV = EnvironmentFile(path="/workspace/data/a.csv", size_bytes=20, blob="b", description="Sales.")


def environment(*files: EnvironmentFile, name: str = "env_1", **fields) -> Environment:
    return Environment(id=name, session_id="sess_1", project_id="default", files=files, **fields)


async def open_file(file: EnvironmentFile) -> AsyncIterator[bytes]:
    yield b"name,count\n"
    yield b"x" * (file.size_bytes - 13) + b",1"


async def open_missing(file: EnvironmentFile) -> AsyncIterator[bytes]:
    raise WorkroomError("the blob is gone")
    yield b""


@pytest.fixture
async def egress(tmp_path):
    async with FakeEgress(tmp_path).serving() as egress:
        yield egress


@pytest.fixture
async def environments(runtime_channel, egress):
    async with open_channel(egress.address) as channel:
        yield Environments(runtime_channel, channel)


async def prepare(environments: Environments, asked: Environment, opener=open_file) -> str:
    return await environments.prepare(asked, session_id="sess_1", open_file=opener)


async def test_an_environment_is_attached_and_has_its_files(environments, fake_runtime, egress):
    made = await prepare(environments, environment(CSV, env={"GREETING": "hello"}))
    assert egress.attached[made].policy.access == 1
    request = fake_runtime.requests[made]
    assert dict(request.labels) == {
        "workroom.owner": "orchestrator",
        "workroom.environment_id": "env_1",
        "workroom.session_id": "sess_1",
    }
    assert request.environment[0].value == "hello"
    assert fake_runtime.path(made, CSV.path).read_bytes() == b"name,count\n" + b"x" * 7 + b",1"
    assert fake_runtime.path(made, "/workspace/outputs").is_dir()


async def test_preparing_again_gives_the_same_container(environments, fake_runtime):
    first = await prepare(environments, environment(CSV))
    assert await prepare(environments, environment(CSV)) == first
    assert len(fake_runtime.containers) == 1


async def test_network_access_that_is_not_offered_leaves_nothing_behind(environments, fake_runtime):
    wanted = environment(network=NetworkPolicy(Access.ENABLED))
    with pytest.raises(EnvironmentUnusable, match="network policy"):
        await prepare(environments, wanted)
    assert not fake_runtime.containers


async def test_a_file_that_cannot_be_read_leaves_nothing_behind(environments, fake_runtime):
    with pytest.raises(WorkroomError, match="blob is gone"):
        await prepare(environments, environment(CSV), open_missing)
    assert not fake_runtime.containers


async def test_without_the_egress_proxy_no_container_is_given_out(
    runtime_channel, tmp_path, fake_runtime
):
    async with open_channel(f"unix:{tmp_path}/none.sock") as nobody:
        environments = Environments(runtime_channel, nobody)
        with pytest.raises(EgressUnavailable):
            await prepare(environments, environment(CSV))
    [made] = fake_runtime.containers
    assert not fake_runtime.path(made, CSV.path).exists()


async def test_without_the_runtime_the_error_says_so(environments, fake_runtime):
    await fake_runtime.stop()
    with pytest.raises(RuntimeUnavailable):
        await prepare(environments, environment())


async def test_disposing_twice_is_fine(environments, fake_runtime, egress):
    made = await prepare(environments, environment())
    await environments.dispose(made)
    await environments.dispose(made)
    assert not fake_runtime.containers and not egress.attached
    with pytest.raises(ContainerGone):
        await environments.check(made)


async def test_only_containers_nobody_owns_are_swept(environments, fake_runtime, container_id):
    kept = await prepare(environments, environment())
    gone = [await prepare(environments, environment(name=f"env_{n}")) for n in range(2, 30)]

    async def live() -> set[str]:
        return {"env_1"}

    assert await environments.sweep(live) == len(gone)
    assert set(fake_runtime.containers) == {kept, container_id}


async def test_outputs_are_found_at_every_depth_but_not_through_links(environments, fake_runtime):
    made = await prepare(environments, environment())
    outputs = fake_runtime.path(made, "/workspace/outputs")
    (outputs / "a" / "b").mkdir(parents=True)
    (outputs / "a" / "b" / "deep.txt").write_bytes(b"deep")
    (outputs / "report ☕.txt").write_bytes(b"report")
    (outputs / "link").symlink_to("/etc")
    (outputs / "secret").symlink_to("/etc/passwd")
    (outputs / os.fsdecode(b"\xff.bin")).write_bytes(b"raw")
    found = await environments.outputs(made)
    assert [(file.path, file.size_bytes) for file in found] == [
        ("/workspace/outputs/a/b/deep.txt", 4),
        ("/workspace/outputs/report ☕.txt", 6),
        ("/workspace/outputs/%FF.bin", 3),
    ]
    contents = [
        b"".join([piece async for piece in environments.read_file(made, file.raw)])
        for file in found
    ]
    assert contents == [b"deep", b"report", b"raw"]


async def test_without_outputs_there_are_none(environments, fake_runtime):
    made = await prepare(environments, environment())
    fake_runtime.path(made, "/workspace/outputs").rmdir()
    assert await environments.outputs(made) == []


async def test_a_missing_file_is_said_to_be_missing(environments):
    made = await prepare(environments, environment())
    with pytest.raises(WorkroomError) as caught:
        async for _ in environments.read_file(made, "/workspace/none"):
            pass
    assert caught.value.reason == "FILE_NOT_FOUND"


async def test_the_data_map_describes_tables(environments, fake_runtime):
    made = await prepare(environments, environment(CSV))
    database = fake_runtime.path(made, "/workspace/d.db")
    with sqlite3.connect(database) as connection:
        connection.execute("CREATE TABLE flights (day INTEGER, dest TEXT)")
        connection.executemany("INSERT INTO flights VALUES (?, ?)", [(1, "ORD")] * 1500)
    connection.close()
    files = (
        CSV,
        EnvironmentFile("/workspace/d.db", 28_672, "b"),
        EnvironmentFile("/workspace/notes.txt", 5, "b", description="Read\nme."),
    )
    assert await environments.data_map(made, files) == (
        "- /workspace/data/a.csv (20 bytes, CSV)\n"
        "  Sales.\n"
        "  1 rows; columns: name text, count integer\n"
        "- /workspace/d.db (28,672 bytes, SQLite)\n"
        "  table flights: 1,500 rows; columns: day INTEGER, dest TEXT\n"
        "- /workspace/notes.txt (5 bytes, .txt file)\n"
        "  Read me."
    )


async def test_no_files_need_no_map(environments):
    assert await environments.data_map("ctr_none", ()) == ""


def test_labels_are_the_documented_ones():
    assert module.ENVIRONMENT_LABEL == "workroom.environment_id"
