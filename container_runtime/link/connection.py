"""One accepted socket: who is on the other side, frames in, batched frames out."""

import asyncio
import socket
import struct
from collections.abc import Callable
from typing import cast

from container_runtime.agent import wire

RECEIVE_BYTES = 524_288
LATER_SECONDS = 0.01


class Peer(asyncio.BufferedProtocol):
    """A connection that may be the supervisor's. What is sent within one turn of the loop leaves
    in one write at its end."""

    def __init__(
        self,
        made: Callable[["Peer"], None],
        frames: Callable[["Peer", list[wire.Frame]], None],
        lost: Callable[["Peer"], None],
    ) -> None:
        self._made, self._frames, self._lost = made, frames, lost
        self._decoder = wire.Decoder(wire.FROM_SUPERVISOR, RECEIVE_BYTES)
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._out: list[bytes] = []
        self._flushing: asyncio.Handle | None = None
        self._later: asyncio.TimerHandle | None = None
        self._room = asyncio.Event()
        self._room.set()
        self.pid = 0
        self.heard = self.spoke = self._loop.time()
        self.problem = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not checked by isinstance: uvloop's transports are classes of their own.
        self._transport = cast(asyncio.Transport, transport)
        connected = transport.get_extra_info("socket")
        size = struct.calcsize("3i")
        credentials = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
        self.pid = struct.unpack("3i", credentials)[0]
        self._transport.set_write_buffer_limits(high=1_048_576)
        self._made(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._decoder.space()

    def buffer_updated(self, nbytes: int) -> None:
        self.heard = self._loop.time()
        try:
            self._frames(self, self._decoder.received(nbytes))
        except wire.ProtocolError as problem:
            self.problem = str(problem)
            self.abort()

    def pause(self) -> None:
        """Read nothing for now."""
        if self._transport is not None:
            self._transport.pause_reading()

    def resume(self) -> None:
        """Read again."""
        if self._transport is not None:
            self._transport.resume_reading()

    def pause_writing(self) -> None:
        self._room.clear()

    def resume_writing(self) -> None:
        self._room.set()

    def send(self, frame: bytes) -> None:
        """Send at the end of this turn; dropped when the connection is gone."""
        if self._flushing is None:
            self._flushing = self._loop.call_soon(self._flush)
        self._out.append(frame)

    def send_later(self, frame: bytes) -> None:
        """Send together with what is sent next, at the latest after `LATER_SECONDS`: what nobody
        waits for must not wake the other side for itself."""
        if self._flushing is None and self._later is None:
            self._later = self._loop.call_later(LATER_SECONDS, self._flush)
        self._out.append(frame)

    @property
    def has_room(self) -> bool:
        """Whether the other side reads what is sent."""
        return self._room.is_set()

    async def room(self) -> None:
        """Wait until the other side has read enough; returns when the connection is gone, too."""
        await self._room.wait()

    def _flush(self) -> None:
        self._flushing = None
        if self._later is not None:
            self._later.cancel()
            self._later = None
        out, self._out = self._out, []
        if out and self._transport is not None and not self._transport.is_closing():
            self.spoke = self._loop.time()
            self._transport.write(b"".join(out) if len(out) > 1 else out[0])

    def close(self) -> None:
        """Close once everything is sent."""
        self._flush()
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Break the connection."""
        if self._transport is not None:
            self._transport.abort()

    def connection_lost(self, problem: Exception | None) -> None:
        self._transport = None
        self._room.set()
        self._lost(self)
