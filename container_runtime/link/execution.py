"""What the host holds of one execution: bytes between socket and sink, stdin in flight, the end."""

import asyncio
from collections import deque

from container_runtime.agent import wire
from container_runtime.link.errors import StdinClosed, StdinGap
from container_runtime.model import (
    Ending,
    ExecutionState,
    ExecutionStatus,
    Offsets,
    Outcome,
    Sink,
    Stream,
)

MAX_PIECE = 262_144


class Stdin:
    """Bytes of stdin that the supervisor may not have yet: kept until the command took them."""

    def __init__(self, *, opened: bool) -> None:
        self.sent = 0
        self.taken = 0
        self.end: int | None = None
        self.closed = not opened
        self.lock = asyncio.Lock()
        self.moved = asyncio.Event()
        self._kept: deque[bytes] = deque()
        self._kept_from = 0

    def take(self, offset: int) -> None:
        """The command has read up to here."""
        if offset > self.sent:
            raise wire.ProtocolError("took stdin that was not sent")
        self.taken = max(self.taken, offset)
        while self._kept and self._kept_from + len(self._kept[0]) <= offset:
            self._kept_from += len(self._kept.popleft())
        self.moved.set()

    def close(self) -> None:
        """The command reads no more."""
        self.closed = True
        self._kept.clear()
        self.taken = self._kept_from = self.sent
        self.moved.set()

    def new_part(self, offset: int, data: bytes) -> bytes:
        """The part of `data` that was not sent yet. Raises StdinGap, StdinClosed."""
        if offset > self.sent:
            raise StdinGap(
                f"stdin has {self.sent} bytes, cannot go on at {offset}",
                expected=str(self.sent),
                offset=str(offset),
            )
        data = data[self.sent - offset :]
        if data and (self.closed or self.end is not None):
            raise StdinClosed("stdin was ended, or the command reads no more of it")
        return data

    def keep(self, piece: bytes) -> int:
        """Count a piece as sent; its offset."""
        at = self.sent
        self.sent += len(piece)
        self._kept.append(piece)
        return at

    def adopt(self, received: int, taken: int, ended: bool) -> None:
        """Take over what the supervisor says, in a process that knew nothing of it."""
        self.sent, self.taken, self._kept_from = received, taken, received
        self.closed = ended

    def missing(self, received: int) -> list[tuple[int, bytes]]:
        """What must be sent again after a reconnect."""
        pieces = []
        at = self._kept_from
        for piece in self._kept:
            if at + len(piece) > received:
                skip = max(0, received - at)
                pieces.append((at + skip, piece[skip:]))
            at += len(piece)
        return pieces


class Execution:
    """One execution's state on the host. Changed by frames, drained by its pump."""

    def __init__(
        self, exec_id: str, channel: int, sink: Sink, start: bytes | None, *, stdin: bool
    ) -> None:
        self.exec_id, self.channel, self.sink = exec_id, channel, sink
        self.start = start
        """The START frame, until the supervisor is known to have it."""
        self.cancel: bytes | None = None
        """The CANCEL frame, once it was asked for."""
        self.state = ExecutionState.STARTING
        self.begun = asyncio.Event()
        self.made = asyncio.get_running_loop().time()
        self.refusal: Exception | None = None
        self.stdin = Stdin(opened=stdin)
        self.outcome: Outcome | None = None
        self.queue: deque[tuple[Stream, int, bytes]] = deque()
        self.received = {Stream.STDOUT: 0, Stream.STDERR: 0}
        self.taken = {Stream.STDOUT: 0, Stream.STDERR: 0}
        self.pumping = False
        self.discarding = False

    def output(self, flag: int, offset: int, data: bytes) -> None:
        """Queue output from the supervisor, which keeps to the window or is dropped."""
        if flag not in (1, 2) or not data:
            raise wire.ProtocolError("output of no stream, or none")
        stream = Stream.STDOUT if flag == 1 else Stream.STDERR
        received = self.received[stream]
        if offset != received:
            if offset > received:
                raise wire.ProtocolError("a gap in output")
            data = data[received - offset :]
            if not data:
                return
        received += len(data)
        if received - self.taken[stream] > wire.WINDOW or self.outcome is not None:
            raise wire.ProtocolError("output beyond its window or end")
        self.queue.append((stream, received - len(data), data))
        self.received[stream] = received

    def end(self, outcome: Outcome) -> None:
        """Its outcome has come; what was sent must be what was counted."""
        if self.outcome is None:
            counted = (outcome.stdout_bytes, outcome.stderr_bytes)
            if outcome.ending is not Ending.LOST and counted != tuple(self.received.values()):
                raise wire.ProtocolError("bytes were counted that did not come")
            self.outcome = outcome
        self.state = ExecutionState.ENDED
        self.start = None
        self.stdin.close()
        self.begun.set()

    def began(self) -> None:
        """The supervisor runs it."""
        self.start = None
        if self.state is ExecutionState.STARTING:
            self.state = ExecutionState.RUNNING
        self.begun.set()

    def give_up(self, now: float) -> None:
        """Wake those who wait for its start, although nothing is known; others may wait anew."""
        overdue, self.begun = self.begun, asyncio.Event()
        self.made = now
        overdue.set()

    def refuse(self, problem: Exception) -> None:
        """The supervisor does not run it."""
        self.refusal = problem
        self.begun.set()

    def next_piece(self) -> tuple[Stream, int, bytes]:
        """The next bytes for the sink, neighbours joined."""
        stream, offset, data = self.queue.popleft()
        queue = self.queue
        if not queue or queue[0][0] is not stream:
            return stream, offset, data
        pieces, size = [data], len(data)
        while queue and queue[0][0] is stream and size + len(queue[0][2]) <= MAX_PIECE:
            piece = queue.popleft()[2]
            pieces.append(piece)
            size += len(piece)
        return stream, offset, b"".join(pieces)

    def status(self) -> ExecutionStatus:
        """A snapshot."""
        return ExecutionStatus(
            exec_id=self.exec_id,
            state=self.state,
            received=Offsets(self.taken[Stream.STDOUT], self.taken[Stream.STDERR]),
            stdin_offset=self.stdin.sent,
            stdin_ended=self.stdin.closed or self.stdin.end is not None,
            outcome=self.outcome,
        )
