"""One execution's pipes: output kept until the host has it, stdin kept until the command took it.

Bounded: a stream holds at most WINDOW bytes, all streams together about BUDGET.
"""

from __future__ import annotations

import os
from fcntl import fcntl

from . import wire
from .lean import deque
from .loop import BROKEN, READ, WRITE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Protocol

    from .loop import Loop

    class Outbox(Protocol):
        """Where frames for the host go."""

        def control(self, frame: bytes) -> None: ...

        def offer(self, source: Source) -> None: ...

    class Source(Protocol):
        """Something that has data frames to send, a piece at a time."""

        queued: bool

        def take(self, parts: list[bytes]) -> bool:
            """Append one frame; whether there is more."""


BUDGET = 16 * 1_048_576
"""Above it every stream's share shrinks to SHARE until the host catches up."""
SHARE = 16_384
CHUNK, LONG_CHUNK = 65_536, 131_072
"""Bytes that are read at a time; the second of a pipe whose command writes faster than that."""
LONG_PIPE = 262_144
LONG_PIPES = 8
"""How many pipes are made so long at a time: the kernel counts their pages by user."""
_F_SETPIPE_SZ = 1031
MERGE = 16_384
MAX_CHUNKS = 1024


def _nothing(*_: object) -> None:
    """In place of a callback, once nobody is interested."""


class Held:
    """What all streams hold together, and the streams that wait for it to shrink."""

    def __init__(self) -> None:
        self.bytes = 0
        self.waiting: set[Output] = set()
        self.long_pipes = 0

    def allowed(self) -> int:
        return wire.WINDOW if self.bytes < BUDGET else SHARE

    def shrunk(self, count: int) -> None:
        crossed = self.bytes >= BUDGET > self.bytes - count
        self.bytes -= count
        if crossed:
            for output in list(self.waiting):
                output.resume()


class Output:
    """An output stream: read from a pipe or terminal, sent, and kept until acknowledged."""

    def __init__(
        self,
        loop: Loop,
        outbox: Outbox,
        held: Held,
        channel: int,
        number: int,
        fd: int,
        changed: Callable[[], None],
        watch: Callable[[int], None] | None = None,
    ) -> None:
        """`changed` is called at end of file and when the last byte was taken for sending.
        `watch` replaces the loop's own watching where the descriptor is shared with stdin."""
        self._loop, self._outbox, self._held, self._changed = loop, outbox, held, changed
        self._channel, self._number, self.fd = channel, number, fd
        self._watch = watch or self._watch_alone
        self.unsent: deque[bytes] = deque()
        self._sent: deque[bytes] = deque()
        self._acknowledged = 0
        self._next = 0
        self.total = 0
        self.eof = False
        self.paused = True
        self.queued = False
        self._left = -1
        self._chunk = CHUNK
        self.resume()

    def __hash__(self) -> int:
        return id(self)

    def _watch_alone(self, events: int) -> None:
        if events:
            self._loop.watch(self.fd, events, self.readable)
        else:
            self._loop.unwatch(self.fd)

    def resume(self) -> None:
        """Read again, if there is room."""
        if self.paused and not self.eof and self._room() > 0:
            self.paused = False
            self._held.waiting.discard(self)
            self._watch(READ)

    def _room(self) -> int:
        if len(self.unsent) + len(self._sent) >= MAX_CHUNKS:
            return 0
        return self._held.allowed() - (self.total - self._acknowledged)

    def readable(self, _events: int) -> None:
        """Read once: one piece a turn, so that streams take turns."""
        self._read()

    def _read(self) -> bool:
        """Whether anything was read."""
        room = self._room()
        if room <= 0:
            self.paused = True
            self._held.waiting.add(self)
            self._watch(0)
            return False
        size = min(room, self._chunk)
        if self._left >= 0:
            size = min(size, self._left)
        try:
            data = os.read(self.fd, size)
        except BlockingIOError:
            return False
        except OSError:
            data = b""  # a terminal without its other side
        if not data:
            self.finish()
            return False
        if len(data) == CHUNK == self._chunk:
            self._lengthen()
        self._keep(data)
        return True

    def _lengthen(self) -> None:
        """Much is written: take more of it at a time."""
        if self._held.long_pipes < LONG_PIPES:
            self._chunk = LONG_CHUNK
            self._held.long_pipes += 1
            try:
                fcntl(self.fd, _F_SETPIPE_SZ, LONG_PIPE)
            except OSError:
                pass  # a terminal, or the user has too many pages in pipes

    def _shorten(self) -> None:
        """Let another pipe be long."""
        if self._chunk == LONG_CHUNK:
            self._chunk = 0
            self._held.long_pipes -= 1

    def _keep(self, data: bytes) -> None:
        size = len(data)
        self.total += size
        self._held.bytes += size
        if self._left >= 0:
            self._left -= size
        unsent = self.unsent
        if unsent and len(unsent[-1]) + size <= MERGE:
            unsent[-1] += data
        else:
            unsent.append(data)
        self.offer()
        if self._left == 0:
            self._stop()

    def drain(self) -> bool:
        """Read all that is there now and fits; whether the pipe is empty."""
        while not self.eof and not self.paused:
            if not self._read():
                break
        return self.eof or not self.paused

    def limit(self, count: int) -> None:
        """Read at most so many bytes more, then finish: somebody else holds the pipe."""
        self._left = count
        if count == 0:
            self._stop()

    def finish(self) -> None:
        """Stop reading and close; what was read is still sent."""
        if not self.eof:
            self.eof = True
            if self.paused:
                self._held.waiting.discard(self)
            self.close()
            self._changed()

    def _stop(self) -> None:
        """Stop reading; the descriptor stays for `take_fd` or `close`."""
        self.eof = True
        self._watch(0)
        self._changed()

    def close(self) -> None:
        """Close the descriptor, if it is still here."""
        fd, self.fd = self.fd, -1
        self._shorten()
        if fd >= 0:
            self._loop.close(fd)

    def take_fd(self) -> int:
        """Give the descriptor, or -1, to somebody else."""
        fd, self.fd = self.fd, -1
        self._shorten()
        return fd

    def take(self, parts: list[bytes]) -> bool:
        """Give one frame for sending; whether there is more."""
        chunk = self.unsent.popleft()
        size = len(chunk)
        parts.append(wire.header(wire.OUTPUT, size, self._channel, self._number, self._next))
        parts.append(chunk)
        self._next += size
        self._sent.append(chunk)
        if self.unsent:
            return True
        self._changed()
        return False

    def acknowledge(self, offset: int) -> None:
        """Forget what is before `offset`. ProtocolError when that was never sent."""
        if offset > self._next:
            raise wire.ProtocolError("acknowledged what was not sent")
        gone = 0
        sent = self._sent
        while offset > self._acknowledged:
            chunk = sent.popleft()
            step = min(len(chunk), offset - self._acknowledged)
            self._acknowledged += step
            gone += step
            if step < len(chunk):
                sent.appendleft(chunk[step:])
        if gone:
            self._held.shrunk(gone)
            self.resume()

    def resume_from(self, offset: int) -> None:
        """After a reconnect: everything from `offset` on is to be sent again."""
        if not self._acknowledged <= offset <= self.total:
            raise wire.ProtocolError("resumed from bytes that are not here")
        self.unsent.extendleft(reversed(self._sent))
        self._sent.clear()
        self._next = self._acknowledged
        gone = 0
        while offset > self._next:
            chunk = self.unsent.popleft()
            step = min(len(chunk), offset - self._next)
            self._next += step
            gone += step
            if step < len(chunk):
                self.unsent.appendleft(chunk[step:])
        self._acknowledged = offset
        self._held.shrunk(gone)
        self.resume()

    def offer(self) -> None:
        """Offer what is unsent to the host."""
        if self.unsent and not self.queued:
            self._outbox.offer(self)

    def first(self) -> int:
        """The offset of the first byte that is still here."""
        return self._acknowledged

    def drop(self) -> None:
        """Forget everything: the execution is recorded, or nobody wants it."""
        self.eof = True
        self.close()
        self._held.waiting.discard(self)
        self.unsent.clear()
        self._sent.clear()
        self._held.shrunk(self.total - self._acknowledged)
        self._acknowledged = self._next = self.total
        self._changed = self._watch = _nothing  # or each would keep the other alive


class Input:
    """Stdin: what the host sent and the command has not read yet."""

    def __init__(
        self,
        loop: Loop,
        outbox: Outbox,
        channel: int,
        fd: int,
        terminal: bool,
        watch: Callable[[int], None] | None = None,
    ) -> None:
        self._loop, self._outbox, self._channel = loop, outbox, channel
        self._terminal = terminal
        self._watch = watch or self._watch_alone
        self._waiting: deque[bytes] = deque()
        self.fd = fd
        self.received = 0
        self.taken = 0
        self.end = -1
        self.closed = False
        self._last = b"\n"

    def _watch_alone(self, events: int) -> None:
        if events:
            self._loop.watch(self.fd, events, self.writable)
        else:
            self._loop.unwatch(self.fd)

    def receive(self, offset: int, data: bytes) -> None:
        """Take bytes from the host. ProtocolError on a gap or beyond the window."""
        if offset > self.received:
            raise wire.ProtocolError("a gap in stdin")
        data = data[self.received - offset :]
        if not data:
            return
        self.received += len(data)
        if self.received - self.taken > wire.WINDOW or self.end >= 0:
            raise wire.ProtocolError("stdin beyond its window or end")
        if self.closed:
            self.taken = self.received
            return
        self._waiting.append(data)
        self._write()

    def finish(self, total: int) -> None:
        """End stdin after `total` bytes, all of which have arrived."""
        if self.end < 0:
            if total != self.received:
                raise wire.ProtocolError("stdin ends elsewhere")
            self.end = total
            self._write()

    def writable(self, _events: int) -> None:
        self._write()

    def _write(self) -> None:
        before = self.taken
        while self._waiting and not self.closed:
            data = self._waiting[0]
            try:
                count = os.write(self.fd, data)
            except BlockingIOError:
                break
            except OSError:
                self._refuse()
                return
            self.taken += count
            self._last = data[count - 1 : count]
            if count < len(data):
                self._waiting[0] = data[count:]
                break
            self._waiting.popleft()
        if self.taken != before:
            self._outbox.control(wire.frame(wire.STDIN_TAKEN, self._channel, offset=self.taken))
        if self._waiting:
            self._watch(WRITE)
            return
        self._watch(0)
        if self.end >= 0 and not self.closed:
            self._end()

    def _end(self) -> None:
        if self._terminal:
            try:
                os.write(self.fd, b"\x04" if self._last == b"\n" else b"\x04\x04")
            except OSError:
                pass
            self.closed = True
        else:
            self.close()

    def _refuse(self) -> None:
        self.close()
        self.taken = self.received
        self._outbox.control(wire.frame(wire.STDIN_CLOSED, self._channel, offset=self.received))

    def drop(self) -> None:
        """Close, for good."""
        self.close()
        self._watch = _nothing

    def close(self) -> None:
        """Nothing more is written."""
        if not self.closed:
            self.closed = True
            self._waiting.clear()
            if self._terminal:
                self._watch(0)
            if not self._terminal and self.fd >= 0:
                self._loop.close(self.fd)
                self.fd = -1


class Terminal:
    """A PTY's master: one descriptor watched for both directions."""

    def __init__(self, loop: Loop, fd: int) -> None:
        self._loop, self.fd = loop, fd
        self._events = [0, 0]
        self.output: Output | None = None
        self.input: Input | None = None

    def is_open(self) -> bool:
        """Whether the descriptor is still here."""
        return self.fd >= 0 and (self.output is None or self.output.fd >= 0)

    def forget(self) -> None:
        """It is closed, and nobody is interested any more."""
        self.fd = -1
        self.output = self.input = None

    def watch_output(self, events: int) -> None:
        self._watch(0, events)

    def watch_input(self, events: int) -> None:
        self._watch(1, events)

    def _watch(self, side: int, events: int) -> None:
        self._events[side] = events
        if not self.is_open():
            return
        both = self._events[0] | self._events[1]
        if both:
            self._loop.watch(self.fd, both, self._ready)
        else:
            self._loop.unwatch(self.fd)

    def _ready(self, events: int) -> None:
        if events & WRITE and self.input is not None:
            self.input.writable(events)
        if events & (READ | BROKEN) and self.output is not None and not self.output.paused:
            self.output.readable(events)
