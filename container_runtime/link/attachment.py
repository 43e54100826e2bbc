"""A supervisor's attachment to this process: listening, who is let in, the handshake, liveness.

Survives reconnects. Knows frames by their destination only: executions, files, or the handshake.
"""

import asyncio
import os
import socket
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import structlog

from container_runtime.agent import wire
from container_runtime.interpreter import SOCKET_NAME
from container_runtime.link.connection import Peer
from container_runtime.link.errors import ContainerLost, SupervisorAway
from container_runtime.link.files import FileRequests, away
from container_runtime.link.session import Listed, Session
from container_runtime.model import Sink

log = structlog.get_logger(__name__)

START_SECONDS = 60.0
"""How long a start may take before its caller is told that it cannot be said whether it runs."""
LAST_WORDS = timedelta(seconds=1)
"""How long the frames of a dead container may still take to be read from its socket."""
MAX_WAITING_PEERS = 4
_FILE_KINDS = frozenset(
    (wire.FILE_RESULT, wire.FILE_ERROR, wire.FILE_DATA, wire.FILE_ACK, wire.FILE_END)
)


class Attachment:
    """Holds at most one connection that is the supervisor's; the rest is refused."""

    def __init__(
        self,
        directory: Path,
        sink: Sink,
        tasks: asyncio.TaskGroup,
        container_id: str,
        on_lost: Callable[[], None] | None,
        away_timeout: timedelta,
    ) -> None:
        self._directory, self._tasks, self._on_lost = directory, tasks, on_lost
        self.away_timeout = away_timeout
        self._log = log.bind(container_id=container_id)
        self._loop = asyncio.get_running_loop()
        self.session = Session(sink, tasks, self.send, self._send_later, container_id)
        self.files = FileRequests(self.connection)
        self._server: asyncio.Server | None = None
        self._expected: int | None = None
        self._pidfd = -1
        self._peers: set[Peer] = set()
        self._all_gone = asyncio.Event()
        self._deferred: list[bytes] = []
        self._peer: Peer | None = None
        self._listing: dict[int, Listed] | None = None
        self._handshake: asyncio.Task[None] | None = None
        self._connected = asyncio.Event()
        self._dying: asyncio.TimerHandle | None = None
        self._beat: asyncio.TimerHandle | None = None
        self._closed = False
        self.lost = False

    @property
    def ready(self) -> bool:
        """Whether a frame could be sent now."""
        peer = self._peer
        return peer is not None and self._connected.is_set() and peer.has_room

    @property
    def connected(self) -> bool:
        """Whether the supervisor is connected and resumed."""
        return self._connected.is_set() and not self.lost

    async def open(self) -> None:
        """Listen on the directory's socket. OSError when it cannot be made."""
        path = self._directory / SOCKET_NAME
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            # The path's own length limit (108) is avoided by going through the open directory.
            folder = os.open(self._directory, os.O_PATH | os.O_DIRECTORY)
            try:
                listening.bind(f"/proc/self/fd/{folder}/{SOCKET_NAME}")
            finally:
                os.close(folder)
            path.chmod(0o600)
            self._server = await self._loop.create_unix_server(self._accept, sock=listening)
        except BaseException:
            listening.close()
            raise
        self._beat = self._loop.call_later(wire.HEARTBEAT_SECONDS, self._check_beat)

    def expect(self, pid: int) -> None:
        """Accept the supervisor only from this process (host pid, from the engine's inspect).

        Until it is called, a connection waits. The process is watched from here on."""
        self._expected = pid
        try:
            self._pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            self._loop.call_soon(self.container_died)
            return
        self._loop.add_reader(self._pidfd, self.container_died)
        for peer in list(self._peers):
            if peer.pid == pid:
                peer.resume()
            else:
                self._refuse(peer)

    def container_died(self) -> None:
        """Say that the engine saw the container die, should it know before the kernel tells."""
        self._stop_watching()
        if self.lost or self._dying is not None:
            return
        if self._peer is None:
            self._lose()
        else:  # what the supervisor said last is still in the socket
            self._dying = self._loop.call_later(LAST_WORDS.total_seconds(), self._lose)

    async def close(self) -> None:
        """Stop listening and end this link's tasks. Executions go on in the container."""
        self._closed = True
        self._stop_watching()
        for timer in (self._beat, self._dying):
            if timer is not None:
                timer.cancel()
        if self._server is not None:
            self._server.close()
        if self._handshake is not None:
            self._handshake.cancel()
        self.files.fail_all(away())
        await self.session.close()
        await self._part(list(self._peers))
        if self._server is not None:
            await self._server.wait_closed()

    async def _part(self, peers: list[Peer]) -> None:
        for peer in peers:
            peer.close()
        try:
            async with asyncio.timeout(LAST_WORDS.total_seconds()):
                while self._peers:
                    await self._all_gone.wait()
        except TimeoutError:
            for peer in peers:
                peer.abort()
            await self._all_gone.wait()

    async def connection(self) -> Peer:
        """The supervisor's connection; waits for it."""
        while True:
            if not self._connected.is_set():
                try:
                    async with asyncio.timeout(self.away_timeout.total_seconds()):
                        await self._connected.wait()
                except TimeoutError:
                    text = "the container's supervisor is not connected"
                    raise SupervisorAway(text) from None
            if self.lost or self._peer is None:
                raise ContainerLost("the container's main process is gone")
            peer = self._peer
            await peer.room()
            if peer is self._peer and self._connected.is_set():
                return peer

    def break_connection(self) -> None:
        """Drop the connection; the supervisor makes a new one."""
        if self._peer is not None:
            self._peer.abort()

    def send(self, frame: bytes) -> None:
        """Send; after the handshake if one is under way. What is lost with a connection is made
        good by the next handshake."""
        if self._peer is None:
            return
        if self._connected.is_set():
            self._peer.send(frame)
        else:
            self._deferred.append(frame)

    def _send_later(self, frame: bytes) -> None:
        """As `send`, with whatever is sent next, or a moment later."""
        if self._peer is not None and self._connected.is_set():
            self._peer.send_later(frame)
        else:
            self.send(frame)

    def _accept(self) -> Peer:
        return Peer(self._made, self._arrived, self._gone)

    def _made(self, peer: Peer) -> None:
        self._peers.add(peer)
        self._all_gone.clear()
        if self._closed:
            peer.abort()  # it was on its way when the listener closed
        elif self.lost or (self._expected is not None and peer.pid != self._expected):
            self._refuse(peer)
        elif self._expected is None:
            peer.pause()
            if len(self._peers) > MAX_WAITING_PEERS:
                self._refuse(peer)

    def _refuse(self, peer: Peer) -> None:
        self._log.warning("connection refused", peer_pid=peer.pid, expected_pid=self._expected)
        peer.abort()

    def _arrived(self, peer: Peer, frames: list[wire.Frame]) -> None:
        if peer.pid != self._expected:
            return
        try:
            for kind, flag, channel, offset, payload in frames:
                if kind == wire.HEARTBEAT:
                    continue
                if peer is not self._peer or self._listing is not None:
                    self._greeting(peer, kind, channel, payload)
                elif kind in _FILE_KINDS:
                    self.files.frame(kind, channel, offset, payload)
                else:
                    self.session.frame(kind, flag, channel, offset, payload)
        finally:
            self.session.arrived()

    def _greeting(self, peer: Peer, kind: int, channel: int, payload: bytes) -> None:
        if kind == wire.HELLO:
            version, boot = wire.fields(payload, 2)
            if wire.number(version) != wire.VERSION or peer is self._peer:
                raise wire.ProtocolError("another version, or greeted twice")
            self._replace(peer)
            self.session.booted(wire.text(boot, 64))
            self._listing = {}
        elif self._listing is None or peer is not self._peer:
            raise wire.ProtocolError("out of turn in the handshake")
        elif kind == wire.LISTED and len(self._listing) < wire.MAX_EXECUTIONS:
            self._listing[channel] = Listed.of(channel, payload)
        elif kind == wire.LISTED_ALL:
            listing, self._listing = self._listing, None
            self._handshake = self._tasks.create_task(self._answer(peer, listing))
        else:
            raise wire.ProtocolError("out of turn in the handshake")

    def _replace(self, peer: Peer) -> None:
        before, self._peer = self._peer, peer
        self._connected.clear()
        self._deferred.clear()
        if before is not None:
            before.abort()
        if self._handshake is not None:
            self._handshake.cancel()

    async def _answer(self, peer: Peer, listing: dict[int, Listed]) -> None:
        try:
            frames = await self.session.answer(listing)
        except wire.ProtocolError as problem:
            peer.problem = str(problem)
            peer.abort()
            return
        except Exception:
            self._log.exception("executions could not be resumed")
            peer.abort()
            return
        if peer is self._peer:
            for frame in [*frames, *self._deferred]:
                peer.send(frame)
            self._deferred.clear()
            self._connected.set()

    def _gone(self, peer: Peer) -> None:
        self._peers.discard(peer)
        if not self._peers:
            self._all_gone.set()
        if peer.problem:
            self._log.warning("supervisor's connection dropped", problem=peer.problem)
        if peer is not self._peer:
            return
        self._peer = self._listing = None
        self._connected.clear()
        self.files.fail_all(away())
        if self._dying is not None:
            self._lose()

    def _lose(self) -> None:
        if self._dying is not None:
            self._dying.cancel()
        if self.lost:
            return
        self.lost = self.session.lost = True
        self._log.info("container lost")
        if self._on_lost is not None:
            self._on_lost()
        for peer in list(self._peers):
            peer.abort()
        self.files.fail_all(ContainerLost("the container's main process is gone"))
        self.session.lose()
        self._connected.set()  # whoever waits learns that it is lost

    def _stop_watching(self) -> None:
        if self._pidfd >= 0:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = -1

    def _check_beat(self) -> None:
        now = self._loop.time()
        peer = self._peer
        if peer is not None:
            if now - peer.heard > wire.SILENCE_SECONDS:
                peer.problem = "nothing was heard"
                peer.abort()
            elif now - peer.spoke >= wire.HEARTBEAT_SECONDS * 0.9:
                peer.send(wire.frame(wire.HEARTBEAT))
        for execution in self.session.all():
            if not execution.begun.is_set() and now - execution.made > START_SECONDS:
                execution.give_up(now)
        if not self.lost:
            self._beat = self._loop.call_later(wire.HEARTBEAT_SECONDS, self._check_beat)
