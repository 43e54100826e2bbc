"""Owns the journal: notes that must survive this process's death at once, cheaply.

A note costs one write to the page cache, about 10 microseconds, and no sync: the process may be
killed at any moment after it, the machine may not (its commands would die with it). Two files take
turns, so that one can be emptied when all that it holds is in the database.
"""

import os
import struct
import zlib
from pathlib import Path

from container_runtime.errors import HostDiskFull

_HEADER = struct.Struct("<II")


class Journal:
    """Appends notes and gives back those that an earlier process left."""

    def __init__(self, directory: Path) -> None:
        """Opens both files; OSError when that fails."""
        self._fds = [
            os.open(directory / f"journal.{number}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            for number in (0, 1)
        ]
        self._active = 0
        self._size = 0

    def append(self, note: str) -> None:
        """Note something down. Raises `HostDiskFull`, and then nothing is noted."""
        payload = note.encode()
        entry = _HEADER.pack(len(payload), zlib.crc32(payload)) + payload
        try:
            written = os.pwrite(self._fds[self._active], entry, self._size)
        except OSError as error:
            raise HostDiskFull(f"the journal cannot be written: {error.strerror}") from error
        if written < len(entry):
            raise HostDiskFull("the journal cannot be written: no space")
        self._size += written

    def turn(self) -> int:
        """Go on in the other file, which must have been emptied; returns the one left behind."""
        left = self._active
        self._active, self._size = 1 - left, 0
        return left

    def empty(self, number: int) -> None:
        """Forget the notes of a file that was left behind."""
        os.ftruncate(self._fds[number], 0)

    def left_over(self) -> list[str]:
        """The notes of both files, each in order; a torn last one is passed over."""
        return [note for fd in self._fds for note in _notes(fd)]

    def close(self) -> None:
        """Close the files."""
        for fd in self._fds:
            os.close(fd)


def _notes(fd: int) -> list[str]:
    data = os.pread(fd, os.fstat(fd).st_size, 0)
    found, at = [], 0
    while at + _HEADER.size <= len(data):
        length, checksum = _HEADER.unpack_from(data, at)
        payload = data[at + _HEADER.size : at + _HEADER.size + length]
        if len(payload) < length or zlib.crc32(payload) != checksum:
            break
        found.append(payload.decode())
        at += _HEADER.size + length
    return found
