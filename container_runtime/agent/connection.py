"""The supervisor's connection to the host: dials, dials again, frames, and shares it fairly."""

from __future__ import annotations

import os
from _socket import AF_UNIX, MSG_DONTWAIT, MSG_NOSIGNAL, SOCK_CLOEXEC, SOCK_STREAM, socket
from time import monotonic

from . import wire
from .lean import deque
from .loop import READ, WRITE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from .loop import Loop
    from .streams import Source

BATCH = 262_144
MAX_PARTS = 256
MAX_CONTROLS = 65_536
LAST_READS = 8
"""Reads that empty a socket: more than its buffer holds."""
FIRST_PAUSE, LONGEST_PAUSE = 0.01, 0.5


class Connection:
    """At most one connection at a time. Sending is batched: what was queued during a turn leaves
    in one system call at its end, control frames first, then a piece of each source in turn."""

    def __init__(
        self,
        loop: Loop,
        path: bytes,
        connected: Callable[[], None],
        received: Callable[[int, int, int, int, bytes], None],
        dropped: Callable[[], None],
    ) -> None:
        self._loop, self._path = loop, path
        self._connected, self._received, self._dropped = connected, received, dropped
        self._socket: socket | None = None
        self._decoder: wire.Decoder | None = None
        self._controls: deque[bytes] = deque()
        self._sources: deque[Source] = deque()
        self._parts: list[bytes | memoryview] = []
        self._blocked = False
        self._scheduled = False
        self._pause = FIRST_PAUSE
        self._heard = self._spoke = 0.0
        self.open_for_sources = False
        loop.later(wire.HEARTBEAT_SECONDS, self._beat)

    def control(self, frame: bytes) -> None:
        """Send a frame, if there is a connection; the handshake tells the rest later."""
        if self._socket is not None:
            self._controls.append(frame)
            if len(self._controls) > MAX_CONTROLS:
                self.drop()
            else:
                self._schedule()

    def offer(self, source: Source) -> None:
        """Send a source's frames, a piece at a time, when the host is ready for them."""
        if self.open_for_sources and not source.queued:
            source.queued = True
            self._sources.append(source)
            self._schedule()

    def dial(self) -> None:
        """Connect, or try again later."""
        dialling = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC)
        try:
            dialling.setblocking(False)
            dialling.connect(os.fsdecode(self._path))
        except OSError:
            dialling.close()
            self._loop.later(self._pause, self.dial)
            self._pause = min(self._pause * 2, LONGEST_PAUSE)
            return
        self._socket = dialling
        self._decoder = wire.Decoder(wire.FROM_HOST)
        self._heard = self._spoke = monotonic()
        self._loop.watch(dialling.fileno(), READ, self._ready)
        self._connected()

    def established(self) -> None:
        """The handshake is done."""
        self._pause = FIRST_PAUSE
        self.open_for_sources = True

    def drop(self) -> None:
        """Break the connection and dial again."""
        if self._socket is None:
            return
        self._loop.unwatch(self._socket.fileno())
        self._socket.close()
        self._socket = self._decoder = None
        self._controls.clear()
        self._parts.clear()
        for source in self._sources:
            source.queued = False
        self._sources.clear()
        self._blocked = self.open_for_sources = False
        self._dropped()
        self._loop.later(self._pause, self.dial)
        self._pause = min(self._pause * 2, LONGEST_PAUSE)

    def _beat(self) -> None:
        now = monotonic()
        if self._socket is not None:
            if now - self._heard > wire.SILENCE_SECONDS:
                self.drop()
            elif now - self._spoke >= wire.HEARTBEAT_SECONDS * 0.9:
                self.control(wire.frame(wire.HEARTBEAT))
        self._loop.later(wire.HEARTBEAT_SECONDS, self._beat)

    def _ready(self, events: int) -> None:
        if events & WRITE:
            self._blocked = False
            self._flush()
        if events & ~WRITE and self._socket is not None and self._decoder is not None:
            self._receive(self._socket, self._decoder)

    def _receive(self, connection: socket, decoder: wire.Decoder) -> None:
        try:
            count = connection.recv_into(decoder.space())
        except BlockingIOError:
            return
        except OSError:
            count = 0
        if not count:
            self.drop()
            return
        self._heard = monotonic()
        try:
            for kind, flag, channel, offset, payload in decoder.received(count):
                if kind != wire.HEARTBEAT:
                    self._received(kind, flag, channel, offset, payload)
                if self._decoder is not decoder:
                    return
        except wire.ProtocolError:
            self.drop()

    def _hear_out(self, connection: socket) -> None:
        """The host has closed its side: take what it said last, then drop the connection."""
        for _ in range(LAST_READS):
            if self._socket is not connection or self._decoder is None:
                return
            self._receive(connection, self._decoder)
        self.drop()

    def _schedule(self) -> None:
        if not self._scheduled and not self._blocked:
            self._scheduled = True
            self._loop.soon(self._flush)

    def _flush(self) -> None:
        self._scheduled = False
        while self._socket is not None and not self._blocked:
            if not self._parts and not self._gather():
                return
            self._send(self._socket)

    def _gather(self) -> bool:
        """Fill the next batch; whether there is anything to send."""
        parts: list[bytes] = []
        size = 0
        while self._controls and len(parts) < MAX_PARTS:
            frame = self._controls.popleft()
            parts.append(frame)
            size += len(frame)
        while self._sources and size < BATCH and len(parts) < MAX_PARTS:
            source = self._sources.popleft()
            if source.take(parts):
                self._sources.append(source)
            else:
                source.queued = False
            size += len(parts[-1])
        self._parts.extend(parts)
        return bool(parts)

    def _send(self, connection: socket) -> None:
        try:
            sent = connection.sendmsg(self._parts, (), MSG_DONTWAIT | MSG_NOSIGNAL)
        except BlockingIOError:
            self._blocked = True
            self._loop.watch(connection.fileno(), READ | WRITE, self._ready)
            return
        except OSError:
            self._hear_out(connection)
            return
        self._spoke = monotonic()
        done = 0
        for part in self._parts:
            if sent < len(part):
                break
            sent -= len(part)
            done += 1
        del self._parts[:done]
        if sent:
            self._parts[0] = memoryview(self._parts[0])[sent:]
        if not self._parts:
            self._loop.watch(connection.fileno(), READ, self._ready)
