"""File verbs: inside the container, as the unprivileged user, with any names, and bounded."""

import asyncio
import errno
import io
import os
import stat
import tarfile
from collections.abc import AsyncIterator, Iterable

import pytest

from container_runtime.link import (
    FileDenied,
    FileError,
    FileExists,
    FileMissing,
    SupervisorAway,
)
from container_runtime.model import FileInfo, FileKind


async def chunks_of(*parts: bytes) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


async def whole(stream: AsyncIterator[bytes]) -> bytes:
    return b"".join([chunk async for chunk in stream])


def names(entries: Iterable[FileInfo]) -> list[bytes]:
    return [entry.path for entry in entries]


async def test_written_file_is_read_back_in_whole_and_in_part(box, shared) -> None:
    data = os.urandom(3_000_000)
    path = bytes(shared) + b"/caf\xc3\xa9\xff \n"
    async with box() as here:
        info = await here.link.write_file(
            path, chunks_of(data[:1], data[1:2_000_000], b"", data[2_000_000:])
        )
        assert (info.size, info.uid, info.mode, info.kind) == (
            3_000_000,
            1000,
            0o644,
            FileKind.FILE,
        )
        assert await whole(here.link.read_file(path)) == data
        assert (
            await whole(here.link.read_file(path, offset=99_999, length=200_001))
            == data[99_999:300_000]
        )
        assert await whole(here.link.read_file(path, offset=3_000_000)) == b""
        assert await whole(here.link.read_file(path, length=0)) == b""
        assert names((await here.link.list_files(bytes(shared))).entries) == [b"caf\xc3\xa9\xff \n"]


async def test_broken_off_write_leaves_the_old_file_and_nothing_else(box, shared) -> None:
    async def breaks() -> AsyncIterator[bytes]:
        yield b"half"
        raise RuntimeError("source failed")

    path = bytes(shared) + b"/kept"
    async with box() as here:
        await here.link.write_file(path, chunks_of(b"old"), mode=0o755)
        with pytest.raises(RuntimeError):
            await here.link.write_file(path, breaks())
        await here.link.write_file(path + b"2", chunks_of(b"after"))
        assert await whole(here.link.read_file(path)) == b"old"
        assert sorted(os.listdir(shared)) == ["kept", "kept2"]
        info = await here.link.write_file(path, chunks_of(b"new"))
        assert info.mode == 0o755, "an existing file keeps its mode"


async def test_verbs_act_with_the_users_rights_unless_root_is_granted(box, shared) -> None:
    secret = shared / "secret"
    secret.write_bytes(b"s")
    secret.chmod(0o600)
    locked = shared / "locked"
    locked.mkdir(mode=0o700)
    async with box() as here:
        for refused in (
            whole(here.link.read_file(bytes(secret))),
            here.link.write_file(bytes(locked) + b"/x", chunks_of(b"x")),
            here.link.list_files(bytes(locked)),
            here.link.mkdir(bytes(locked) + b"/d"),
            here.link.remove(b"/etc/hostname"),
            here.link.move(b"/etc/hostname", b"/etc/elsewhere"),
        ):
            with pytest.raises(FileDenied):
                await refused
        assert await whole(here.link.read_file(bytes(secret), root=True)) == b"s"
        info = await here.link.write_file(bytes(locked) + b"/x", chunks_of(b"x"), root=True)
        assert info.uid == 0
        with pytest.raises(FileDenied):
            await whole(here.link.read_file(bytes(locked) + b"/x"))


async def test_root_replacing_a_file_leaves_its_owner(box, shared) -> None:
    path = bytes(shared) + b"/mine"
    async with box() as here:
        await here.link.write_file(path, chunks_of(b"a"), mode=0o640)
        info = await here.link.write_file(path, chunks_of(b"b"), root=True)
        assert (info.uid, info.mode) == (1000, 0o640)


async def test_what_is_no_regular_file_is_neither_read_nor_written(box, shared) -> None:
    fifo = bytes(shared) + b"/fifo"
    os.mkfifo(fifo, 0o666)
    os.chmod(fifo, 0o666)
    async with box() as here:
        async with asyncio.timeout(3):
            for path in (fifo, b"/dev/zero", bytes(shared)):
                with pytest.raises(FileError):
                    await whole(here.link.read_file(path))
                with pytest.raises(FileError):
                    await here.link.write_file(path, chunks_of(b"x"))
            assert (await here.link.stat(fifo)).kind is FileKind.OTHER
        assert stat.S_ISFIFO(os.stat(fifo).st_mode)


async def test_links_are_described_followed_and_removed_as_such(box, shared) -> None:
    target, link = bytes(shared) + b"/target", bytes(shared) + b"/link"
    async with box() as here:
        await here.link.write_file(target, chunks_of(b"t"))
        os.symlink(b"target", link)
        info = await here.link.stat(link, follow=False)
        assert (info.kind, info.target) == (FileKind.SYMLINK, b"target")
        assert (await here.link.stat(link)).kind is FileKind.FILE
        await here.link.write_file(link, chunks_of(b"through"))
        assert stat.S_ISLNK(os.lstat(link).st_mode)
        assert await whole(here.link.read_file(target)) == b"through"
        await here.link.remove(link)
        assert await whole(here.link.read_file(target)) == b"through"


async def test_listing_comes_in_pages_by_name(box, shared) -> None:
    folder = shared / "many"
    folder.mkdir()
    for n in range(2500):
        (folder / f"{n:04}").touch()
    async with box() as here:
        seen: list[bytes] = []
        after = b""
        while True:
            page = await here.link.list_files(bytes(folder), after=after)
            seen += names(page.entries)
            if page.next_name is None:
                break
            after = page.next_name
        assert seen == [f"{n:04}".encode() for n in range(2500)]
        page = await here.link.list_files(bytes(folder), limit=3)
        assert (names(page.entries), page.next_name) == ([b"0000", b"0001", b"0002"], b"0002")


async def test_directories_are_made_moved_and_removed(box, shared) -> None:
    top = bytes(shared)
    async with box() as here:
        info = await here.link.mkdir(top + b"/a/b/c", parents=True, mode=0o750)
        assert (info.kind, info.mode) == (FileKind.DIRECTORY, 0o750)
        await here.link.mkdir(top + b"/a/b/c", parents=True)
        with pytest.raises(FileExists):
            await here.link.mkdir(top + b"/a/b/c")
        with pytest.raises(FileMissing):
            await here.link.mkdir(top + b"/x/y")
        await here.link.write_file(top + b"/a/f", chunks_of(b"1"))
        await here.link.write_file(top + b"/g", chunks_of(b"2"))
        with pytest.raises(FileExists):
            await here.link.move(top + b"/g", top + b"/a/f", replace=False)
        await here.link.move(top + b"/g", top + b"/a/f")
        assert await whole(here.link.read_file(top + b"/a/f")) == b"2"
        with pytest.raises(FileError) as caught:
            await here.link.remove(top + b"/a")
        assert caught.value.errno == errno.ENOTEMPTY
        await here.link.remove(top + b"/a", recursive=True)
        with pytest.raises(FileMissing):
            await here.link.stat(top + b"/a")


async def test_removing_a_tree_does_not_follow_links(box, shared) -> None:
    keep, tree = shared / "keep", shared / "tree"
    async with box() as here:
        await here.link.mkdir(bytes(tree))
        await here.link.write_file(bytes(keep) + b"/file", chunks_of(b"x"), make_parents=True)
        done = await here.run(f"ln -s {keep} {tree}/link")
        assert done.outcome.code == 0
        await here.link.remove(bytes(tree), recursive=True)
        assert (keep / "file").read_bytes() == b"x"


async def test_reader_that_stops_early_leaves_nothing_open(box, shared) -> None:
    (shared / "big").write_bytes(bytes(5_000_000))
    async with box() as here:
        for _ in range(70):
            stream = here.link.read_file(bytes(shared) + b"/big")
            assert await anext(stream)
            await stream.aclose()
        await whole(here.link.read_file(bytes(shared) + b"/big"))
        assert len(os.listdir(f"/proc/{here.pid}/fd")) < 30


async def test_slow_file_reader_stops_nobody(box, shared) -> None:
    (shared / "big").write_bytes(bytes(5_000_000))
    async with box() as here:
        slow = here.link.read_file(bytes(shared) + b"/big")
        got = len(await anext(slow))
        assert (await here.run("echo fine")).out == b"fine\n"
        assert len(await whole(here.link.read_file(bytes(shared) + b"/big"))) == 5_000_000
        got += len(await whole(slow))
        assert got == 5_000_000


async def test_file_request_ends_with_its_connection(box, shared) -> None:
    (shared / "big").write_bytes(bytes(5_000_000))
    async with box() as here:
        stream = here.link.read_file(bytes(shared) + b"/big")
        await anext(stream)
        here.break_connection()
        with pytest.raises(SupervisorAway):
            await whole(stream)
        assert len(await whole(here.link.read_file(bytes(shared) + b"/big"))) == 5_000_000


async def test_tar_comes_out_and_goes_in(box, shared) -> None:
    async with box() as here:
        for name in (b"a/one", b"a/b/two"):
            await here.link.write_file(
                bytes(shared) + b"/" + name, chunks_of(name * 50_000), make_parents=True
            )
        archive = await whole(here.link.read_tar(bytes(shared) + b"/a"))
        with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
            assert sorted(tar.getnames()) == [".", "./b", "./b/two", "./one"]
        count = await here.link.write_tar(bytes(shared) + b"/copy", chunks_of(archive))
        assert count == 4
        assert (
            await whole(here.link.read_file(bytes(shared) + b"/copy/b/two")) == b"a/b/two" * 50_000
        )
        assert (await here.link.stat(bytes(shared) + b"/copy")).uid == 1000
        assert list(here.link.executions()) == []


async def test_tar_member_that_would_leave_is_refused(box, shared) -> None:
    for make in (
        lambda: tarfile.TarInfo("../outside"),
        lambda: _linked("link", str(shared)),
        lambda: _linked("link", "../.."),
    ):
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as tar:
            tar.addfile(make())
        async with box() as here:
            with pytest.raises(FileError):
                await here.link.write_tar(bytes(shared) + b"/in", chunks_of(buffer.getvalue()))
            assert not (shared / "outside").exists()


def _linked(name: str, target: str) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = tarfile.SYMTYPE, target
    return member


async def test_tar_errors_carry_their_errno(box, shared) -> None:
    async with box() as here:
        with pytest.raises(FileMissing):
            await whole(here.link.read_tar(bytes(shared) + b"/missing"))
        with pytest.raises(FileDenied):
            await here.link.write_tar(b"/etc/no", chunks_of(b""))
        with pytest.raises(FileError):
            await here.link.write_tar(bytes(shared) + b"/in", chunks_of(b"not a tar" * 10_000))
