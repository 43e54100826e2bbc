"""Owns the contents of files and artifacts on the local disk; knows not whose they are.

Names are paths of plain words such as `sessions/sess_1/files/0`. A blob appears whole or not at
all, and is never changed.
"""

import asyncio
import hashlib
import os
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import BufferedWriter
from pathlib import Path
from uuid import uuid4

from orchestrator.errors import DiskFull, FileTooLarge

CHUNK_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True)
class Stored:
    """What was written."""

    size_bytes: int
    sha256: str


class Blobs:
    """A folder of blobs. `reserve_bytes` of the disk are left free."""

    def __init__(self, root: Path, *, reserve_bytes: int = 512 * 1024 * 1024) -> None:
        self._root = root
        self._reserve_bytes = reserve_bytes

    async def write(self, name: str, content: AsyncIterator[bytes], *, limit_bytes: int) -> Stored:
        """Store `content` under `name`, replacing what is there; nothing is kept on an error.

        Errors: `FileTooLarge`, `DiskFull`.
        """
        path = self._path(name)
        draft = path.with_name(f".{uuid4().hex}")
        digest = hashlib.sha256()
        size = 0
        with _disk_errors():
            await asyncio.to_thread(self._make_room, path)
            file = await asyncio.to_thread(draft.open, "xb")
        try:
            async for data in content:
                size += len(data)
                if size > limit_bytes:
                    raise FileTooLarge(limit_bytes)
                digest.update(data)
                with _disk_errors():
                    await asyncio.to_thread(file.write, data)
            with _disk_errors():
                await asyncio.to_thread(_settle, file, draft, path)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise
        finally:
            with suppress(OSError):
                file.close()
        return Stored(size, digest.hexdigest())

    async def read(self, name: str) -> AsyncIterator[bytes]:
        """The content in chunks. Errors: `FileNotFoundError`."""
        file = await asyncio.to_thread(self._path(name).open, "rb")
        try:
            while data := await asyncio.to_thread(file.read, CHUNK_BYTES):
                yield data
        finally:
            file.close()

    async def share(self, name: str, new_name: str) -> None:
        """Give a blob a second name; each is deleted alone. Errors: `FileNotFoundError`."""
        await asyncio.to_thread(self._share, self._path(name), self._path(new_name))

    async def delete(self, name: str) -> None:
        """Delete a blob, or all whose names begin with `name/`; nothing there is fine."""
        await asyncio.to_thread(_remove, self._path(name))

    async def names(self, folder: str) -> list[str]:
        """What there is in a folder: the last words of names that begin with `folder/`."""

        def listed() -> list[str]:
            path = self._path(folder)
            return sorted(entry.name for entry in path.iterdir()) if path.is_dir() else []

        return await asyncio.to_thread(listed)

    def _path(self, name: str) -> Path:
        words = name.split("/")
        if not all(word and not word.startswith(".") and "\0" not in word for word in words):
            raise ValueError(f"not a blob's name: {name!r}")
        return self._root.joinpath(*words)

    def _make_room(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        free = shutil.disk_usage(path.parent).free
        if free < self._reserve_bytes:
            raise DiskFull(
                f"only {free} bytes are free on the disk that keeps the files, "
                f"{self._reserve_bytes} must stay so; delete sessions or files",
                free_bytes=str(free),
            )

    def _share(self, path: Path, new_path: Path) -> None:
        new_path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with suppress(FileExistsError):
            os.link(path, new_path)


@contextmanager
def _disk_errors() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise DiskFull(f"a file could not be stored: {error.strerror}") from error


def _settle(file: BufferedWriter, draft: Path, path: Path) -> None:
    file.flush()
    os.fsync(file.fileno())
    file.close()
    draft.replace(path)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
