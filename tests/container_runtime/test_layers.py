"""How the room that containers take outside of their volumes is measured."""

import asyncio
import os

from container_runtime import layers
from container_runtime.container import Container
from container_runtime.limits import sizes
from container_runtime.records import ContainerRecord, ContainerRequest, ContainerState, Size
from container_runtime.runtime import now
from container_runtime.volumes import Volumes

MIB = 2**20


async def test_a_tree_is_measured_by_what_it_takes_on_the_disk(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "big").write_bytes(b"x" * 3 * MIB)
    (tmp_path / "sparse").touch()
    os.truncate(tmp_path / "sparse", 1000 * MIB)
    os.symlink("/usr", tmp_path / "link")
    used = await layers.measure(tmp_path)
    assert 3 * MIB <= used < 4 * MIB


async def test_a_large_tree_measures_as_a_small_one_does(tmp_path):
    for number in range(layers.WALK_ENTRIES + 1):
        (tmp_path / str(number)).touch()
    used = await layers.measure(tmp_path)
    # Empty files count: each takes an inode.
    assert used >= layers.WALK_ENTRIES * layers.ENTRY_BYTES


def active(layer) -> Container:
    record = ContainerRecord(
        "ctr_1", "n", ContainerRequest(size=Size.SMALL), ContainerState.ACTIVE, now(), now()
    )
    container = Container(record)
    container.layer = layer
    return container


class Stopped:
    def __init__(self) -> None:
        self.said: list[str] = []

    async def __call__(self, container, problem) -> None:
        self.said.append(problem)


async def test_a_container_over_its_bound_is_stopped_and_one_below_is_not(tmp_path):
    volumes = await Volumes.opened(tmp_path / "disks", "turned off")
    container, stopped = active(tmp_path), Stopped()
    small = sizes(1)  # 41 MiB of disk and 20 MiB of layer, together as there is no volume
    watch = layers.LayerWatch(lambda: [container], volumes, stopped, small, 0)
    (tmp_path / "file").write_bytes(b"x" * 30 * MIB)
    await watch.look()
    assert stopped.said == []
    assert (watch.used("ctr_1") or 0) >= 30 * MIB
    (tmp_path / "more").write_bytes(b"x" * 40 * MIB)
    watch = layers.LayerWatch(lambda: [container], volumes, stopped, small, 0)
    await watch.look()
    (said,) = stopped.said
    assert said.startswith("disk full")


async def test_on_a_disk_that_is_nearly_full_the_largest_is_stopped(tmp_path):
    volumes = await Volumes.opened(tmp_path / "disks", "turned off")
    container, stopped = active(tmp_path), Stopped()
    watch = layers.LayerWatch(lambda: [container], volumes, stopped, sizes(100), 2**62)
    await watch.look()
    (said,) = stopped.said
    assert "the node's disk" in said


async def test_a_layer_that_vanished_is_no_error(tmp_path):
    volumes = await Volumes.opened(tmp_path / "disks", "turned off")
    container, stopped = active(tmp_path / "gone"), Stopped()
    watch = layers.LayerWatch(lambda: [container], volumes, stopped, sizes(100), 0)
    async with asyncio.timeout(5):
        await watch.look()
    assert stopped.said == []
