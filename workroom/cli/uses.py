"""What a command has made and takes away again: noted on disk, so that it goes if the command dies.

A use is a file under `run/uses/`, locked by the command for as long as it lives. The kernel gives
the lock back however the command ends; what is noted in a file without a lock, nobody wants.
"""

import fcntl
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from workroom.client import Client
from workroom.paths import Home, private_folder

USE = "workroom.use"
"""The key of a session's metadata that names the use it goes with."""

_SUFFIX = ".use"


@dataclass(frozen=True)
class Use:
    """One command's use of an installation."""

    path: Path
    descriptor: int

    @property
    def metadata(self) -> dict[str, str]:
        """What marks a session that goes with the command, however that ends."""
        return {USE: self.path.stem}

    def note_file(self, file_id: str) -> None:
        """An uploaded file goes with the command."""
        os.write(self.descriptor, f"{file_id}\n".encode())

    def cleared(self) -> None:
        """Nothing that goes with the command is left."""
        self.path.unlink(missing_ok=True)


@contextmanager
def using(home: Home) -> Iterator[Use]:
    """A use of the installation that lasts for the block. Its file stays until it is `cleared`."""
    folder = _folder(home)
    private_folder(folder)
    token = secrets.token_hex(8)
    hidden = folder / f".{token}"
    descriptor = os.open(hidden, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield Use(hidden.rename(folder / f"{token}{_SUFFIX}"), descriptor)
    finally:
        hidden.unlink(missing_ok=True)
        os.close(descriptor)


async def clear_dead(home: Home, client: Client) -> int:
    """Deletes what commands made that have died, and answers how many those were.

    Raises what `Client` raises; what was not deleted stays noted.
    """
    count = 0
    for path in sorted(_folder(home).glob(f"*{_SUFFIX}")):
        with _abandoned(path) as files:
            if files is None:
                continue
            async for session in client.sessions_with({USE: path.stem}):
                await client.remove(session.id)
            await client.remove("", files)
            path.unlink(missing_ok=True)
            count += 1
    return count


@contextmanager
def _abandoned(path: Path) -> Iterator[list[str] | None]:
    """The files noted by a command that has died; None when it lives or has just ended well."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        yield None
        return
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield None
            return
        yield [line for line in path.read_text().splitlines() if line] if path.exists() else None
    finally:
        os.close(descriptor)


def _folder(home: Home) -> Path:
    return home.run / "uses"
