"""Owns the bytes that executions have written: one bounded file per stream, many readers.

Knows offsets and files, not what produced the bytes or who reads them.

A file holds a linear head and, behind it, a ring. Below the bound every byte lies at its own
offset and the file's size says how much there is. Past it the ring turns: the file beside it
(`.ring`) then says from where on the ring is whole and how much was written. It is written before
and after each turn, so that a process killed in between loses nothing that it took for kept: the
supervisor sends again what it was not thanked for. Nothing is synced to the device: output
outlives this process, and a machine that goes down takes the commands with it.
"""

import asyncio
import os
import resource
import struct
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from container_runtime.errors import SpoolFailed
from container_runtime.records import SpoolPolicy, SpoolSpec, Totals

_RING_SUFFIX = ".ring"
_RING = struct.Struct("<qq")
_SLOW_WRITE = 0.02  # a write that slept and took this long means that the disk throttles us,
_SLOW_SPELL = 5.0  # and for so long writes are made in a thread, where they hold up nobody else


@dataclass(frozen=True, slots=True)
class Gap:
    """A range that is not kept any more."""

    offset: int
    length: int


class Reader(Protocol):
    """Somebody who reads a stream on; under `block` the command waits for the slowest."""

    def position(self) -> int:
        """The offset that will be read next."""


class StreamSpool:
    """One stream's bytes. All methods belong to one event loop's thread."""

    def __init__(self, path: str, spec: SpoolSpec, executor: Executor) -> None:
        """Nothing is touched until the first byte; `recover` takes up what is on disk."""
        self._path = path
        self._executor = executor
        self._blocking = spec.policy is SpoolPolicy.BLOCK
        self._head = 0 if self._blocking else spec.bytes_per_stream // 2
        self._ring = spec.bytes_per_stream - self._head
        self._fd = -1
        self._ring_fd = -1
        self._total = 0
        self._missing = 0
        self._tail = 0
        self._consumed = 0
        self._finished = False
        self._readers: set[Reader] = set()
        self._room = asyncio.Event()
        self._slow_until = 0.0

    @property
    def total(self) -> int:
        """Bytes taken so far; once finished, all that the command wrote."""
        return self._total + self._missing

    @property
    def received(self) -> int:
        """Bytes that were taken, whether or not they are still kept."""
        return self._total

    @property
    def finished(self) -> bool:
        """Nothing will be added."""
        return self._finished

    def totals(self) -> Totals:
        """How much there is and what of it is kept. At most one gap is ever to be told of."""
        if self._tail > self._head:
            return Totals(self.total, self._head, self._tail - self._head)
        if self._missing:
            return Totals(self.total, self._total, self._missing)
        return Totals(self.total)

    def recover(self) -> None:
        """Take up what an earlier process left on disk."""
        try:
            self._total = os.stat(self._path).st_size
        except FileNotFoundError:
            return
        try:
            kept = Path(self._path + _RING_SUFFIX).read_bytes()
        except FileNotFoundError:
            kept = b""
        if len(kept) == _RING.size:
            self._tail, self._total = _RING.unpack(kept)
        self._tail = max(self._tail, self._head)

    # Writing

    async def write(self, offset: int, data: bytes, tell: Callable[[], None]) -> None:
        """Take bytes at `offset`; what was taken before is passed over. `tell` is called whenever
        there is more to read.

        Returns when all are on disk, which under `block` may take until somebody has read on.
        Raises `SpoolFailed` when the disk refuses them or bytes are missing before them.
        """
        if offset > self._total:
            raise SpoolFailed(f"output jumps from {self._total} to {offset}")
        data = data[self._total - offset :]
        while data:
            room = self._room_for(len(data))
            if room <= 0:
                self._room.clear()
                await self._room.wait()
                continue
            await self._append(data[:room])
            tell()
            data = data[room:]

    def write_now(self, offset: int, data: bytes, tell: Callable[[], None]) -> bool:
        """As `write`, if nothing has to be waited for; whether that was so."""
        if self._blocking or offset != self._total or not 0 < len(data) <= self._ring:
            return False
        if time.monotonic() < self._slow_until:
            return False
        self._append_now(data)
        tell()
        return True

    def _room_for(self, length: int) -> int:
        room = min(length, self._ring)
        return min(room, self._bound() - self._total) if self._blocking else room

    async def _append(self, data: bytes) -> None:
        if time.monotonic() >= self._slow_until:
            self._append_now(data)
            return
        with _spooling():
            turning = self._make_room(data)
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(self._executor, self._put, self._total, data)
            self._appended(data, turning)

    def _append_now(self, data: bytes) -> None:
        with _spooling():
            turning = self._make_room(data)
            before, slept = time.monotonic(), _sleeps()
            self._put(self._total, data)
            if time.monotonic() - before > _SLOW_WRITE and _sleeps() > slept:
                self._slow_until = time.monotonic() + _SLOW_SPELL
            self._appended(data, turning)

    def _make_room(self, data: bytes) -> bool:
        """Say on disk what is about to be overwritten; whether anything is."""
        self._open()
        end = self._total + len(data)
        if end <= self._head + self._ring:
            return False
        self._tail = max(self._tail, self._head, end - self._ring)
        self._note_ring()
        return True

    def _appended(self, data: bytes, turning: bool) -> None:
        self._total += len(data)
        if turning:
            self._note_ring()

    def _put(self, offset: int, data: bytes) -> None:
        view = memoryview(data)
        while view:
            place, room = self._place(offset)
            written = os.pwrite(self._fd, view[:room], place)
            view = view[written:]
            offset += written

    def _place(self, offset: int) -> tuple[int, int]:
        """Where in the file an offset lies, and how many bytes follow it there in one piece."""
        if offset < self._head:
            return offset, self._head - offset
        turned = (offset - self._head) % self._ring
        return self._head + turned, self._ring - turned

    def _open(self) -> None:
        if self._fd < 0:
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
            self._fd = os.open(self._path, flags, 0o600)

    def _note_ring(self) -> None:
        if self._ring_fd < 0:
            flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC
            self._ring_fd = os.open(self._path + _RING_SUFFIX, flags, 0o600)
        os.pwrite(self._ring_fd, _RING.pack(self._tail, self._total), 0)

    def _bound(self) -> int:
        """Up to where a blocked stream may grow: half the spool stays behind its slowest reader,
        so that one whose connection broke can come back by offset."""
        if self._readers:
            self._consumed = max(self._consumed, min(reader.position() for reader in self._readers))
        return max(self._ring, self._consumed + self._ring // 2)

    def finish(self, total: int | None = None) -> None:
        """Nothing more comes; `total` is what the source counted, and what is missing is a gap."""
        self._missing = max(0, (total or 0) - self._total)
        self.release()
        self._finished = True
        self._close()

    def release(self) -> None:
        """Let a blocked command go on at the cost of its oldest output."""
        self._blocking = False
        self._room.set()

    def close(self) -> None:
        """Give back file descriptors; a blocked writer stays blocked until it is cancelled."""
        self._close()

    def _close(self) -> None:
        for fd in (self._fd, self._ring_fd):
            if fd >= 0:
                os.close(fd)
        self._fd = self._ring_fd = -1

    def remove(self) -> None:
        """Delete the files."""
        self._close()
        for path in (self._path, self._path + _RING_SUFFIX):
            Path(path).unlink(missing_ok=True)

    # Reading

    def attach(self, reader: Reader) -> None:
        """Count a reader in; under `block` its position holds the command up."""
        self._readers.add(reader)

    def detach(self, reader: Reader) -> None:
        """Count a reader out."""
        self._bound()
        self._readers.discard(reader)
        self._room.set()

    def consumed(self, offset: int) -> None:
        """Say that somebody has read up to `offset`, or that an attached reader moved on."""
        if not self._readers:
            self._consumed = max(self._consumed, offset)
        self._room.set()

    def read(self, offset: int, limit: int) -> bytes | Gap:
        """Bytes from `offset` on, empty at the end of what there is, or the gap it lies in.

        Raises `SpoolFailed` when the disk does not give them.
        """
        if offset >= self._total:
            ahead = self.total - offset
            return Gap(offset, ahead) if self._missing and ahead > 0 else b""
        if self._head <= offset < self._tail:
            return Gap(offset, self._tail - offset)
        end = min(self._total, offset + limit)
        if offset < self._head < self._tail:
            end = min(end, self._head)
        try:
            data = self._fetch(offset, end - offset)
        except OSError as error:
            raise SpoolFailed(f"output could not be read: {error.strerror}") from error
        return data

    def _fetch(self, offset: int, length: int) -> bytes:
        place, room = self._place(offset)
        if self._fd >= 0:
            return os.pread(self._fd, min(length, room), place)
        fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.pread(fd, min(length, room), place)
        finally:
            os.close(fd)


@contextmanager
def _spooling() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise SpoolFailed(f"output could not be spooled: {error.strerror}") from error


def _sleeps() -> int:
    """How often this thread gave up the processor of its own accord, as for a disk; that others
    took it, on a busy machine, does not count."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
