"""What size-limited file systems promise. Needs root and loop devices."""

import asyncio
import errno
import io
import os
import tarfile
from pathlib import Path

import pytest

from container_runtime.volumes import VolumeFailed, Volumes, kernel
from tests.container_runtime.node import new_home

MIB = 2**20


@pytest.fixture
def directory():
    with new_home() as home:
        yield home.root / "disks"


@pytest.fixture
async def volumes(directory):
    volumes = await Volumes.opened(directory)
    assert volumes.problem == ""
    return volumes


async def nothing(into: Path) -> bool:
    return False


def giving(content: bytes, asked: list[Path] | None = None):
    """A seed with this content, which notes where it was put."""

    async def seed(into: Path) -> bool:
        if asked is not None:
            asked.append(into)
        await asyncio.to_thread(into.write_bytes, content)
        return True

    return seed


def loops(directory: Path) -> list[str]:
    """Loop devices over files below a directory."""
    found = []
    for path in Path("/sys/block").glob("loop*/loop/backing_file"):
        try:
            backing = path.read_text().strip()
        except OSError:
            continue
        if backing.startswith(f"{directory}/"):
            found.append(backing)
    return found


def mounted(directory: Path) -> list[str]:
    return [str(each.target) for each in kernel.mounts() if directory in each.target.parents]


async def test_a_volume_holds_what_it_may_and_no_more(volumes):
    workspace, temporary = await volumes.make("v1", "image", 64 * MIB, nothing)
    assert (workspace.target, temporary.target) == ("/workspace", "/tmp")
    assert (workspace.source.stat().st_uid, workspace.source.stat().st_mode & 0o7777) == (
        1000,
        0o755,
    )
    assert temporary.source.stat().st_mode & 0o7777 == 0o1777
    with pytest.raises(OSError) as full:
        (workspace.source / "big").write_bytes(bytes(80 * MIB))
    assert full.value.errno == errno.ENOSPC
    usage = await volumes.usage("v1")
    assert usage.bytes_used <= usage.bytes_total <= 64 * MIB
    assert usage.bytes_used > 0.9 * usage.bytes_total
    await volumes.remove("v1")


async def test_what_is_deleted_inside_goes_back_to_the_disk(volumes, directory):
    workspace, _ = await volumes.make("v1", "image", 256 * MIB, nothing)
    image = directory / "images" / "v1.img"
    small = image.stat().st_blocks
    (workspace.source / "big").write_bytes(bytes(100 * MIB))
    os.sync()
    assert image.stat().st_blocks * 512 > 100 * MIB
    (workspace.source / "big").unlink()
    await volumes.unmount("v1")
    assert image.stat().st_blocks * 512 < small * 512 + 20 * MIB
    await volumes.remove("v1")


async def test_a_volume_keeps_its_content_while_it_is_not_mounted(volumes, directory):
    workspace, _ = await volumes.make("v1", "image", 64 * MIB, nothing)
    (workspace.source / "file").write_text("kept")
    await volumes.unmount("v1")
    await volumes.unmount("v1")
    assert mounted(directory) == loops(directory) == []
    assert await volumes.usage("v1") is None
    await volumes.mount("v1")
    await volumes.mount("v1")
    assert len(mounted(directory)) == 1
    assert (workspace.source / "file").read_text() == "kept"
    await volumes.remove("v1")


async def test_nothing_is_left_of_a_removed_volume(volumes, directory):
    await volumes.make("v1", "image", 64 * MIB, nothing)
    await volumes.remove("v1")
    await volumes.remove("v1")
    assert mounted(directory) == loops(directory) == []
    assert [path for path in directory.rglob("*") if "v1" in path.name] == []


async def test_programs_run_but_gain_no_rights_and_devices_do_nothing(volumes):
    await volumes.make("v1", "image", 64 * MIB, nothing)
    table = await asyncio.to_thread(Path("/proc/self/mountinfo").read_text)
    (line,) = [line for line in table.splitlines() if "/mounts/v1 " in line]
    options = line.split()[5].split(",")
    assert {"nosuid", "nodev"} <= set(options)
    assert "noexec" not in options
    await volumes.remove("v1")


def archive(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for member, content in members:
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return packed.getvalue()


def member(name: str, kind: bytes = tarfile.REGTYPE, target: str = "") -> tarfile.TarInfo:
    found = tarfile.TarInfo(name)
    found.type, found.linkname, found.uid, found.gid = kind, target, 1000, 1000
    found.mode = 0o755 if kind == tarfile.DIRTYPE else 0o644
    return found


async def test_an_images_own_workspace_is_what_a_volume_begins_with(volumes):
    content = archive(
        (member("workspace", tarfile.DIRTYPE), b""),
        (member("workspace/notes.txt"), b"from the image"),
        (member("workspace/link", tarfile.SYMTYPE, "/etc/passwd"), b""),
    )
    asked: list[Path] = []
    seed = giving(content, asked)
    for volume_id in ("v1", "v2"):
        workspace, _ = await volumes.make(volume_id, "image", 64 * MIB, seed)
        notes = workspace.source / "notes.txt"
        assert (notes.read_text(), notes.stat().st_uid) == ("from the image", 1000)
        assert os.readlink(workspace.source / "link") == "/etc/passwd"
        notes.write_text("changed")
    assert len(asked) == 1, "the image is asked once, not for every volume"
    assert not asked[0].exists()
    for volume_id in ("v1", "v2"):
        await volumes.remove(volume_id)


async def test_a_hostile_images_workspace_reaches_nothing_outside(volumes, tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("untouched")
    content = archive(
        (member("workspace", tarfile.DIRTYPE), b""),
        (member("workspace/out", tarfile.SYMTYPE, str(tmp_path)), b""),
        (member("workspace/out/victim"), b"overwritten"),
        (member(f"../../../..{victim}"), b"overwritten"),
        (member("workspace/disk", tarfile.BLKTYPE), b""),
    )

    try:
        workspace, _ = await volumes.make("v1", "image", 64 * MIB, giving(content))
        assert not (workspace.source / "disk").exists()
    except VolumeFailed:
        pass  # refused as a whole
    assert victim.read_text() == "untouched"
    assert [path.name for path in tmp_path.iterdir()] == ["victim"]
    await volumes.remove("v1")


async def test_an_image_with_too_much_in_its_workspace_is_refused(volumes, directory):
    content = archive((member("workspace/big"), bytes(80 * MIB)))

    with pytest.raises(VolumeFailed, match="workspace"):
        await volumes.make("v1", "image", 64 * MIB, giving(content))
    assert mounted(directory) == loops(directory) == []
    assert list((directory / "templates").iterdir()) == []


async def test_a_sweep_removes_what_nobody_knows_and_nothing_else(volumes, directory):
    for volume_id in ("known", "forgotten"):
        await volumes.make(volume_id, "image", 64 * MIB, nothing)
    with new_home() as other_home:
        others = await Volumes.opened(other_home.root / "disks")
        await others.make("other", "image", 64 * MIB, nothing)
        again = await Volumes.opened(directory)
        assert list(await again.sweep({"known"})) == ["forgotten"]
        assert len(mounted(directory)) == len(loops(directory)) == 1
        assert await others.usage("other")
        await others.remove("other")
    assert list(await volumes.sweep(())) == ["known"]


async def test_a_half_made_template_is_removed_at_the_next_start(volumes, directory):
    left = directory / "templates" / "making-left"
    left.mkdir()
    (left / "image").write_bytes(b"half")
    (directory / "templates" / "making-x.tar").write_bytes(b"half")
    await Volumes.opened(directory)
    assert list((directory / "templates").iterdir()) == []


async def test_a_container_that_does_not_see_its_volume_is_found_out(volumes):
    await volumes.make("v1", "image", 64 * MIB, nothing)
    with pytest.raises(VolumeFailed, match="does not see"):
        await volumes.check_seen("v1", os.getpid())
    await volumes.remove("v1")


async def test_where_volumes_are_off_nothing_is_made(directory):
    volumes = await Volumes.opened(directory, "turned off")
    assert not volumes.in_force
    assert await volumes.make("v1", "image", 64 * MIB, nothing) == ()
    await volumes.mount("v1")
    await volumes.unmount("v1")
    await volumes.remove("v1")
    assert await volumes.usage("v1") is None
    assert not directory.exists()
