"""What containers write is bounded, and nothing of it outlives them."""

import asyncio
import os
import signal
from datetime import timedelta
from pathlib import Path

import aiodocker
import pytest

from container_runtime.volumes import kernel
from tests.container_runtime.node import node_on, until
from tests.docker.test_restart import Service
from workroom.runtime.v1 import containers_pb2 as cpb
from workroom.runtime.v1 import executions_pb2 as epb

pytestmark = [pytest.mark.docker, pytest.mark.timeout(120)]

ROOT = epb.Command.USER_ROOT
MIB = 2**20
SOME_CPU = timedelta(seconds=0.3)
FILL = "dd if=/dev/zero of={} bs=1M count=4000 2>&1 | tail -n 4; wc -c < {}"


def mounted(home) -> list[str]:
    return [str(each.target) for each in kernel.mounts() if home.root in each.target.parents]


def loops(home) -> list[str]:
    return [
        line
        for path in Path("/sys/block").glob("loop*/loop/backing_file")
        if str(home.root) in (line := path.read_text())
    ]


def free(path: Path) -> int:
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize


@pytest.fixture
async def small(home, engine):
    """A node whose small containers have 80 MiB of disk and 40 MiB of layer."""
    async with node_on(home, engine, disk_percent=2) as node:
        yield node


async def stats(node, container_id: str) -> cpb.GetContainerStatsResponse:
    request = cpb.GetContainerStatsRequest(container_id=container_id)
    return await node.calls.containers.GetContainerStats(request)


async def test_a_full_disk_is_the_containers_own(small):
    full, other = [await small.calls.create() for _ in range(2)]
    before = free(small.home.root)
    for place in ("/workspace/big", "/tmp/big"):
        done = await small.calls.run(full.id, FILL.format(place, place), user=ROOT)
        assert b"No space left on device" in done.stdout.head
    used = (await stats(small, full.id)).disk
    assert 0.9 * used.volume_limit_bytes < used.volume_bytes <= used.volume_limit_bytes < 82 * MIB
    assert before - free(small.home.root) < 500 * MIB
    done = await small.calls.run(other.id, "echo fine > file && cat file")
    assert done.stdout.head == b"fine\n"
    done = await small.calls.run(full.id, "rm /workspace/big && echo fits > file && cat file")
    assert done.stdout.head == b"fits\n"


async def test_what_is_written_elsewhere_stops_the_container_and_says_why(small):
    created, other = [await small.calls.create() for _ in range(2)]
    script = "dd if=/dev/zero of=/var/big bs=1M count=100; sleep 60"
    running = await small.calls.start(created.id, script, user=ROOT)
    lost = (await small.calls.wait(running.id)).outcome.container_lost
    assert lost.reason == epb.ContainerLost.REASON_DISK_FULL
    assert "disk full" in lost.message
    found = await small.calls.get(created.id)
    assert found.state == cpb.Container.STATE_FAILED
    assert "disk full" in found.failure
    done = await small.calls.run(other.id, "echo fine")
    assert done.stdout.head == b"fine\n"


async def test_deleting_a_container_frees_its_disk(small):
    created = await small.calls.create()
    before = free(small.home.root)
    await small.calls.run(created.id, "head -c 60M /dev/urandom > /workspace/big; sync")
    assert len(mounted(small.home)) == len(loops(small.home)) == 1
    taken = free(small.home.root)
    await small.calls.delete(created.id)
    assert mounted(small.home) == loops(small.home) == []
    assert list((small.home.root / "disks" / "images").iterdir()) == []
    assert free(small.home.root) - taken > 40 * MIB or before - free(small.home.root) < 20 * MIB


async def test_a_sleeping_container_takes_no_mount_and_no_loop_device(small):
    created = await small.calls.create()
    await small.calls.run(created.id, "echo kept > /workspace/file; echo kept > /tmp/file")
    request = cpb.SuspendContainerRequest(container_id=created.id)
    await small.calls.containers.SuspendContainer(request)
    assert mounted(small.home) == loops(small.home) == []
    done = await small.calls.run(created.id, "cat /workspace/file /tmp/file")
    assert done.stdout.head == b"kept\nkept\n"


async def test_capabilities_say_that_the_bound_is_in_force(small):
    told = await small.calls.containers.GetCapabilities(cpb.GetCapabilitiesRequest())
    assert told.disk_bound.in_force
    assert told.disk_bound.problem == ""
    assert told.sizes[0].disk_bytes == 4 * 2**30 * 2 // 100


async def test_where_the_bound_is_off_it_is_said_and_containers_work(home, engine):
    async with node_on(home, engine, bound_disks=False) as node:
        told = await node.calls.containers.GetCapabilities(cpb.GetCapabilitiesRequest())
        assert not told.disk_bound.in_force
        assert told.disk_bound.problem
        created = await node.calls.create()
        done = await node.calls.run(created.id, "echo fine > /workspace/file && cat file")
        assert done.stdout.head == b"fine\n"
        assert mounted(home) == []


async def test_programs_run_from_the_workspace_and_from_tmp(small):
    created = await small.calls.create()
    for folder in ("/workspace", "/tmp"):
        script = f"printf '#!/bin/sh\\necho ran\\n' > {folder}/p; chmod +x {folder}/p; {folder}/p"
        assert (await small.calls.run(created.id, script)).stdout.head == b"ran\n"


async def test_an_images_own_workspace_is_seen(home, small):
    label = f"workroom.test={home.installation_id()}"
    async with aiodocker.Docker() as docker:
        reference = f"wr-test/own-workspace:{home.installation_id()[-12:].lower()}"
        made = await docker.containers.create(
            {"Image": "workroom/base:latest", "Cmd": ["true"], "Labels": dict([label.split("=")])}
        )
        try:
            await put_file(made, "/workspace", "notes.txt", b"from the image\n")
            name, tag = reference.split(":")
            await made.commit(repository=name, tag=tag)
        finally:
            await made.delete(force=True)
        try:
            created = await small.calls.create(image=reference)
            done = await small.calls.run(created.id, "cat notes.txt; echo more >> notes.txt")
            assert done.stdout.head == b"from the image\n"
            assert done.execution.outcome.exited.code == 0
            await small.calls.delete(created.id)
        finally:
            await docker.images.delete(reference, force=True)


async def put_file(container, folder: str, name: str, content: bytes) -> None:
    import io
    import tarfile

    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        member = tarfile.TarInfo(name)
        member.size, member.uid, member.gid = len(content), 1000, 1000
        archive.addfile(member, io.BytesIO(content))
    await container.put_archive(folder, packed.getvalue())


def moved(before, after) -> set[str]:
    """What has clearly grown."""
    grown = {
        "memory": after.memory.current_bytes - before.memory.current_bytes > 90 * MIB,
        "volume": after.disk.volume_bytes - before.disk.volume_bytes > 25 * MIB,
        "written": after.io.written_bytes - before.io.written_bytes >= 30 * MIB,
        "read": after.io.read_bytes - before.io.read_bytes >= 10 * MIB,
        "pids": after.pids.current > before.pids.current,
        "cpu": after.cpu.total.ToTimedelta() - before.cpu.total.ToTimedelta() > SOME_CPU,
    }
    return {name for name, is_so in grown.items() if is_so}


async def test_usage_moves_as_things_are_used(small):
    created = await small.calls.create()
    before = await stats(small, created.id)
    assert before.memory.limit_bytes == 2**30
    assert before.pids.limit == 512
    script = """
        python3 - <<'END' &
import time
block = b'x' * (100 << 20)
until = time.process_time() + 0.5
while time.process_time() < until:
    pass
time.sleep(60)
END
        head -c 20M /dev/urandom > /workspace/file
        dd if=/dev/zero of=/workspace/direct bs=1M count=10 oflag=direct status=none
        dd if=/workspace/direct of=/dev/null bs=1M iflag=direct status=none
        echo written; wait
    """
    await small.calls.start(created.id, script)
    grown = before
    async with asyncio.timeout(20):
        while moved(before, grown) != {"memory", "volume", "read", "written", "pids", "cpu"}:
            await asyncio.sleep(0.1)
            grown = await stats(small, created.id)
    assert grown.memory.peak_bytes >= grown.memory.working_set_bytes > 0
    assert grown.disk.volume_files > before.disk.volume_files


async def test_asking_for_usage_does_not_keep_a_container_awake(small):
    created = await small.calls.create()
    last = (await small.calls.get(created.id)).last_active_time
    await stats(small, created.id)
    record = small.runtime.containers.peek(created.id).record
    assert int(record.last_active.timestamp()) == last.seconds


async def test_kill_9_leaves_volumes_that_are_taken_up_or_removed(home, engine):
    service = Service(home)
    await service.begin()
    async with service.calls() as calls:
        kept, lost = [(await calls.create()).id for _ in range(2)]
        await calls.run(kept, "echo kept > /workspace/file")
        assert len(mounted(home)) == 2
        making = [asyncio.create_task(calls.create()) for _ in range(3)]
        await asyncio.wait(making, timeout=0.2)
        await service.end(signal.SIGKILL)
        await asyncio.gather(*making, return_exceptions=True)
    # One container vanishes while nobody looks.
    for found in await engine.list({"workroom.container": lost}):
        await engine.remove(found.engine_id)
    await service.begin()
    async with service.calls() as calls:
        done = await calls.run(kept, "cat /workspace/file")
        assert done.stdout.head == b"kept\n"
        listed = (await calls.containers.ListContainers(cpb.ListContainersRequest())).containers
        for container in listed:
            if container.id != kept:
                await calls.delete(container.id)
        assert [Path(each).name for each in mounted(home)] == [kept]
        assert len(loops(home)) == 1
        await calls.delete(kept)
    assert mounted(home) == loops(home) == []
    assert await service.end(signal.SIGTERM) == 0


async def test_a_pool_has_volumes_too_and_gives_them_back(home, engine):
    async with node_on(home, engine, warm_pool=("base/small=1",)) as node:
        await until(lambda: node.runtime.pool.status()[0].ready == 1)
        assert len(mounted(home)) == 1
        created = await node.calls.create()
        done = await node.calls.run(created.id, "echo fine > /workspace/file && cat file")
        assert done.stdout.head == b"fine\n"
        await node.calls.delete(created.id)
    assert mounted(home) == loops(home) == []
