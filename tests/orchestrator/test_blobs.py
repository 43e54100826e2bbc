"""Contents appear whole or not at all."""

import hashlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from orchestrator.blobs import Blobs
from orchestrator.errors import DiskFull, FileTooLarge


async def pieces(*data: bytes) -> AsyncIterator[bytes]:
    for piece in data:
        yield piece


async def content(blobs: Blobs, name: str) -> bytes:
    return b"".join([data async for data in blobs.read(name)])


@pytest.fixture
def blobs(tmp_path: Path) -> Blobs:
    return Blobs(tmp_path, reserve_bytes=0)


async def test_what_is_written_is_read(blobs: Blobs):
    stored = await blobs.write("files/a", pieces(b"one", b"", b"two"), limit_bytes=6)
    assert stored.size_bytes == 6
    assert stored.sha256 == hashlib.sha256(b"onetwo").hexdigest()
    assert await content(blobs, "files/a") == b"onetwo"


async def test_what_is_too_large_leaves_nothing(blobs: Blobs, tmp_path: Path):
    with pytest.raises(FileTooLarge):
        await blobs.write("files/a", pieces(b"one", b"two"), limit_bytes=5)
    assert list((tmp_path / "files").iterdir()) == []


async def test_content_that_fails_leaves_what_was_there(blobs: Blobs, tmp_path: Path):
    async def broken() -> AsyncIterator[bytes]:
        yield b"half"
        raise ConnectionError("gone")

    await blobs.write("files/a", pieces(b"old"), limit_bytes=9)
    with pytest.raises(ConnectionError):
        await blobs.write("files/a", broken(), limit_bytes=9)
    assert await content(blobs, "files/a") == b"old"
    assert len(list((tmp_path / "files").iterdir())) == 1


async def test_a_nearly_full_disk_is_left_alone(tmp_path: Path):
    with pytest.raises(DiskFull):
        await Blobs(tmp_path, reserve_bytes=2**62).write("files/a", pieces(b"x"), limit_bytes=9)


async def test_a_shared_content_outlives_its_first_name(blobs: Blobs):
    await blobs.write("files/a", pieces(b"x"), limit_bytes=1)
    await blobs.share("files/a", "sessions/s/0")
    await blobs.delete("files/a")
    await blobs.delete("files/a")
    assert await content(blobs, "sessions/s/0") == b"x"
    assert await blobs.names("sessions") == ["s"]
    await blobs.delete("sessions/s")
    assert await blobs.names("sessions") == []


@pytest.mark.parametrize("name", ["../x", "a//b", "/a", "a/.b", "", "a\0"])
async def test_no_name_leads_out_of_the_folder(blobs: Blobs, name: str):
    with pytest.raises(ValueError, match="not a blob"):
        await blobs.write(name, pieces(b"x"), limit_bytes=1)
