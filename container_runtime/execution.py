"""Owns one execution as it lives: its record, its two spools, and those who wait for news of it.

Knows neither the supervisor nor the callers.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime

from container_runtime.errors import OffsetOutOfRange
from container_runtime.model import Ending, Outcome, Stream
from container_runtime.records import ExecutionRecord, ExecutionRequest
from container_runtime.spool import Gap, StreamSpool

CHUNK_BYTES = 256 * 1024
"""The most that a watcher is handed at a time."""


class Execution:
    """A command, from the moment it is asked for. Belongs to one event loop's thread."""

    def __init__(self, record: ExecutionRecord, stdout: StreamSpool, stderr: StreamSpool) -> None:
        self._record = record
        self.spools = {Stream.STDOUT: stdout, Stream.STDERR: stderr}
        self._listeners: set[Callable[[], None]] = set()
        self._final: ExecutionRecord | None = None
        self.starting = asyncio.Lock()
        """Held by whoever is asking the supervisor to start it."""
        self.accepted = record.started is not None
        """The supervisor has said that it has it."""

    @property
    def id(self) -> str:
        """Its id."""
        return self._record.id

    @property
    def request(self) -> ExecutionRequest:
        """What was asked for."""
        return self._record.request

    @property
    def over(self) -> bool:
        """Whether it has ended."""
        return self._record.outcome is not None

    def record(self) -> ExecutionRecord:
        """What is known of it now."""
        if self._final is not None:
            return self._final
        found = replace(
            self._record,
            stdout=self.spools[Stream.STDOUT].totals(),
            stderr=self.spools[Stream.STDERR].totals(),
        )
        if self.over:
            self._final = found
        return found

    def accept(self, when: datetime) -> None:
        """The supervisor has it; it runs, or has ended already."""
        if not self.accepted and not self.over:
            self._record = replace(self._record, started=when)
        self.accepted = True

    def took_stdin(self, offset: int) -> None:
        """Standard input was accepted up to here."""
        if offset > self._record.stdin_bytes:
            self._record = replace(self._record, stdin_bytes=offset)

    def end(self, outcome: Outcome, when: datetime) -> None:
        """It is over, after all of its output."""
        counted = outcome.ending is not Ending.LOST
        self.spools[Stream.STDOUT].finish(outcome.stdout_bytes if counted else None)
        self.spools[Stream.STDERR].finish(outcome.stderr_bytes if counted else None)
        started: datetime | None = None
        if outcome.ending is not Ending.START_FAILED:
            started = self._record.started or max(self._record.created, when - outcome.duration)
        self._final = self._record = replace(
            self._record,
            started=started,
            ended=when,
            outcome=outcome,
            stdout=self.spools[Stream.STDOUT].totals(),
            stderr=self.spools[Stream.STDERR].totals(),
        )
        self.accepted = True
        self.tell()

    def release(self) -> None:
        """Wait for no reader any more."""
        for spool in self.spools.values():
            spool.release()

    # News

    def listen(self, listener: Callable[[], None]) -> None:
        """Call `listener`, which must not raise, whenever there is output or an end."""
        self._listeners.add(listener)

    def unlisten(self, listener: Callable[[], None]) -> None:
        """Stop calling it."""
        self._listeners.discard(listener)

    def tell(self) -> None:
        """There is news."""
        for listener in tuple(self._listeners):
            listener()

    async def wait(self) -> None:
        """Return when it has ended."""
        if self.over:
            return
        news = asyncio.Event()
        self.listen(news.set)
        try:
            while not self.over:
                news.clear()
                await news.wait()
        finally:
            self.unlisten(news.set)


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of a stream."""

    stream: Stream
    offset: int
    data: bytes


@dataclass(frozen=True, slots=True)
class MissingRange:
    """A range of a stream that is not kept any more."""

    stream: Stream
    offset: int
    length: int


class _Position:
    """Where a watch is in one stream; what the spool counts as a reader."""

    __slots__ = ("offset", "spool", "stream")

    def __init__(self, stream: Stream, spool: StreamSpool, offset: int) -> None:
        self.stream, self.spool, self.offset = stream, spool, offset

    def position(self) -> int:
        """The offset that will be read next."""
        return self.offset


class Watch:
    """One watcher's way through an execution's output; to be closed."""

    def __init__(
        self, execution: Execution, stdout_offset: int = 0, stderr_offset: int = 0
    ) -> None:
        """Raises `OffsetOutOfRange` for an offset past what was written."""
        offsets = {Stream.STDOUT: stdout_offset, Stream.STDERR: stderr_offset}
        for stream, offset in offsets.items():
            check_offset(execution, stream, offset)
        self.execution = execution
        self._positions = [
            _Position(stream, execution.spools[stream], offset)
            for stream, offset in offsets.items()
        ]
        self._told_end = False
        for position in self._positions:
            position.spool.attach(position)

    def next(self, limit: int = CHUNK_BYTES) -> Chunk | MissingRange | ExecutionRecord | None:
        """What follows: output, a gap, or the end; `None` when there is nothing now, or ever
        again. The streams take turns. With a `limit` of 0 gaps and the end still come."""
        for position in tuple(self._positions):
            found = position.spool.read(position.offset, limit)
            if isinstance(found, Gap):
                self._move(position, found.offset + found.length)
                return MissingRange(position.stream, found.offset, found.length)
            if found:
                start = position.offset
                self._move(position, start + len(found))
                return Chunk(position.stream, start, found)
        if self.execution.over and not self._told_end and self._read_all():
            self._told_end = True
            return self.execution.record()
        return None

    def _read_all(self) -> bool:
        return all(position.offset >= position.spool.total for position in self._positions)

    def _move(self, position: _Position, offset: int) -> None:
        position.offset = offset
        position.spool.consumed(offset)
        if self._positions[0] is position:
            self._positions.reverse()

    def close(self) -> None:
        """Hold the command up no longer."""
        for position in self._positions:
            position.spool.detach(position)


def check_offset(execution: Execution, stream: Stream, offset: int) -> None:
    """Raises `OffsetOutOfRange` where a command has not written as much."""
    total = execution.spools[stream].total
    if offset > total:
        raise OffsetOutOfRange(
            f"offset {offset} is past the {total} bytes written to {stream.name.lower()}",
            offset=str(offset),
            total_bytes=str(total),
        )
