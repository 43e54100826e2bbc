"""The host's side of one container's supervisor: starts, feeds, signals and drains executions.

Knows the wire, not the engine: the engine tells it the container's main process, and outputs go
to a `Sink`.
"""

import asyncio
import os
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

import structlog

from container_runtime.agent import wire
from container_runtime.interpreter import SOCKET_NAME
from container_runtime.link import encoding
from container_runtime.link.archives import ArchiveSink, pieces
from container_runtime.link.connection import Peer
from container_runtime.link.errors import (
    ContainerLost,
    ExecutionNotFound,
    StdinClosed,
    SupervisorAway,
)
from container_runtime.link.execution import Execution
from container_runtime.link.files import FileRequests, away
from container_runtime.link.session import OWN_PREFIX, Listed, Session
from container_runtime.model import (
    ExecutionStatus,
    FileInfo,
    FilePage,
    PtySize,
    Sink,
    StartSpec,
)
from workroom.errors import InvalidField

log = structlog.get_logger(__name__)
T = TypeVar("T")

START_SECONDS = 60.0
"""How long a start may take before its caller is told that it cannot be said whether it runs."""
LAST_WORDS = timedelta(seconds=1)
"""How long the frames of a dead container may still take to be read from its socket."""
MAX_WAITING_PEERS = 4
_FILE_KINDS = frozenset(
    (wire.FILE_RESULT, wire.FILE_ERROR, wire.FILE_DATA, wire.FILE_ACK, wire.FILE_END)
)


def _understood(decode: Callable[[list[wire.Value]], T], answer: list[wire.Value]) -> T:
    """A decoded answer; one that makes no sense counts as none."""
    try:
        return decode(answer)
    except wire.ProtocolError as problem:
        raise SupervisorAway(f"the supervisor's answer is malformed: {problem}") from None


class Link:
    """A container's supervisor as seen from the host; survives reconnects of either side.

    Life: make one per container, `await open()` before the container starts, start the
    container, `expect(pid)`, use it, `await close()`. After a restart of this process: make one
    on the same directory, `expect` the pid that the engine still reports, `open()`; the
    supervisor dials again and its executions are resumed from where `sink.resume` says.

    Concurrency: every method may be called from any task of the loop that `open` ran in. Tasks
    live in `tasks` and end with `close()` or with the container.
    """

    def __init__(
        self,
        directory: Path,
        sink: Sink,
        tasks: asyncio.TaskGroup,
        *,
        container_id: str,
        on_lost: Callable[[], None] | None = None,
        away_timeout: timedelta = timedelta(seconds=10),
    ) -> None:
        """`directory` is this container's own and is mounted read-only into it, see
        `supervisor_mounts`. `on_lost` is called once when the main process is gone, before the
        executions' `ended`. `away_timeout` bounds how long a call waits for the supervisor to
        connect before it raises `SupervisorAway`."""
        self._directory, self._tasks, self._on_lost = directory, tasks, on_lost
        self._away_timeout = away_timeout.total_seconds()
        self._log = log.bind(container_id=container_id)
        self._loop = asyncio.get_running_loop()
        self._session = Session(sink, tasks, self._send, container_id)
        self._files = FileRequests(self._connection)
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
        self._lost = False
        self._dying: asyncio.TimerHandle | None = None
        self._beat: asyncio.TimerHandle | None = None
        self._archives = 0

    @property
    def connected(self) -> bool:
        """Whether the supervisor is connected and resumed now."""
        return self._connected.is_set() and not self._lost

    @property
    def lost(self) -> bool:
        """Whether the container's main process is gone (final)."""
        return self._lost

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

    async def ready(self) -> None:
        """Wait until connected. Raises `SupervisorAway` or `ContainerLost`."""
        await self._connection()

    def container_died(self) -> None:
        """Say that the engine saw the container die, should it know before the kernel tells."""
        self._stop_watching()
        if self._lost or self._dying is not None:
            return
        if self._peer is None:
            self._lose()
        else:  # what the supervisor said last is still in the socket
            self._dying = self._loop.call_later(LAST_WORDS.total_seconds(), self._lose)

    async def close(self) -> None:
        """Stop listening and end this link's tasks. Executions go on in the container."""
        self._stop_watching()
        for timer in (self._beat, self._dying):
            if timer is not None:
                timer.cancel()
        if self._server is not None:
            self._server.close()
        if self._handshake is not None:
            self._handshake.cancel()
        self._files.fail_all(away())
        await self._session.close()
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

    # Executions

    async def start(self, spec: StartSpec) -> ExecutionStatus:
        """Start an execution, or join the one that has this id; returns once the command runs or
        has ended (a failing start is an outcome for the sink, not an error).

        Raises InvalidField, TooManyExecutions, ExecutionRepeated, SupervisorAway, ContainerLost.
        After SupervisorAway the execution may or may not run: call again with the same id."""
        execution = self._session.find(spec.exec_id)
        if execution is None:
            encoding.check(spec)
            if self._peer is None or not self._connected.is_set() or not self._peer.has_room:
                await self._connection()
            execution = self._session.find(spec.exec_id) or self._session.new(
                spec.exec_id,
                lambda channel: encoding.start_frame(channel, spec),
                None,
                stdin=spec.stdin or spec.pty is not None,
            )
        await self._begun(execution)
        return execution.status()

    async def _begun(self, execution: Execution) -> None:
        # Bounded by `_check_beat`: a timer for each start would cost more than all the rest.
        if not execution.begun.is_set():
            await execution.begun.wait()
        if execution.refusal is not None:
            raise execution.refusal
        if not execution.begun.is_set():
            raise SupervisorAway("the supervisor did not say that the command runs")

    def status(self, exec_id: str) -> ExecutionStatus:
        """Raises ExecutionNotFound."""
        return self._execution(exec_id).status()

    def executions(self) -> Sequence[ExecutionStatus]:
        """All executions that are not recorded as ended."""
        return [
            execution.status()
            for execution in self._session.all()
            if not execution.exec_id.startswith(OWN_PREFIX)
        ]

    async def stdin(self, exec_id: str, offset: int, data: bytes) -> None:
        """Send stdin from byte `offset`. What arrived before is skipped, so re-sending is safe.

        Waits while the command does not read (256 KiB are in flight). Raises StdinGap,
        StdinClosed, ExecutionNotFound, SupervisorAway, ContainerLost."""
        execution = self._execution(exec_id)
        stdin = execution.stdin
        async with stdin.lock:
            data = stdin.new_part(offset, data)
            while data:
                room = wire.WINDOW - (stdin.sent - stdin.taken)
                if room <= 0:
                    await stdin.moved.wait()
                    stdin.moved.clear()
                    stdin.new_part(stdin.sent, data)
                    continue
                peer = await self._connection()
                size = min(room, wire.MAX_PAYLOAD)
                piece, data = data[:size], data[size:]
                at = stdin.keep(piece)
                self._send(wire.frame(wire.STDIN, execution.channel, offset=at, payload=piece))
                await peer.room()

    async def end_stdin(self, exec_id: str) -> None:
        """End stdin after all that was sent: EOF on a pipe, ^D on a PTY. Idempotent."""
        execution = self._execution(exec_id)
        stdin = execution.stdin
        async with stdin.lock:
            if stdin.end is None and not stdin.closed:
                await self._connection()
                stdin.end = stdin.sent
                self._send(wire.frame(wire.STDIN_END, execution.channel, offset=stdin.sent))

    async def signal(self, exec_id: str, signal: int) -> None:
        """Send a signal (1..64) to the execution's process group."""
        if not 1 <= signal <= 64:
            raise InvalidField("signal", "must be 1..64")
        execution = self._execution(exec_id)
        await self._connection()
        self._send(wire.frame(wire.SIGNAL, execution.channel, offset=signal))

    async def cancel(self, exec_id: str, grace: timedelta | None = None) -> None:
        """TERM the whole tree, KILL it after `grace` (the spec's by default). Idempotent; returns
        once the supervisor was told, the outcome comes through the sink."""
        milliseconds = -1
        if grace is not None:
            milliseconds = min(max(0, encoding.milliseconds(grace)), wire.MAX_GRACE_MS)
        execution = self._execution(exec_id)
        execution.cancel = wire.control(wire.CANCEL, execution.channel, milliseconds)
        await self._connection()
        self._send(execution.cancel)

    async def resize(self, exec_id: str, size: PtySize) -> None:
        """Resize the execution's PTY; nothing happens when it has none."""
        encoding.check_size(size)
        execution = self._execution(exec_id)
        await self._connection()
        self._send(wire.control(wire.RESIZE, execution.channel, size.rows, size.columns))

    # Files inside the container, as the unprivileged user unless `root`. Paths are absolute or
    # relative to /workspace. All raise FileError and its kinds, SupervisorAway, ContainerLost.

    async def stat(self, path: bytes, *, root: bool = False, follow: bool = True) -> FileInfo:
        """Describe a path; with `follow`, what a symlink points to."""
        answer = await self._files.simple(wire.STAT, path, root=root, option=follow)
        return _understood(encoding.file_info, answer)

    async def list_files(
        self, path: bytes, *, after: bytes = b"", limit: int = 1000, root: bool = False
    ) -> FilePage:
        """One directory's entries, by name, beginning after `after`; at most 1,000 a page. Entry
        paths are their names within the directory. `next_name` goes into the next `after`."""
        answer = await self._files.simple(
            wire.LIST, path, root=root, other=after, limit=min(max(limit, 1), wire.MAX_LISTING)
        )
        return _understood(encoding.file_page, answer)

    def read_file(
        self, path: bytes, *, offset: int = 0, length: int | None = None, root: bool = False
    ) -> AsyncGenerator[bytes]:
        """A regular file's bytes in chunks of at most 64 KiB, never more than 256 KiB ahead of
        the consumer. Close the iterator to stop early."""
        if offset < 0 or (length is not None and length < 0):
            raise InvalidField("offset", "offset and length must be 0 or more")
        return self._files.read(path, offset, length, root)

    async def write_file(
        self,
        path: bytes,
        chunks: AsyncIterator[bytes],
        *,
        mode: int = 0o644,
        make_parents: bool = False,
        root: bool = False,
    ) -> FileInfo:
        """Write a file and put it in place atomically when `chunks` ends; when that raises or the
        call is cancelled, whatever was there before stays. Chunks may have any size. `mode` is
        for a new file; an existing one keeps its own, and its owner when root writes."""
        answer = await self._files.write(path, chunks, mode & 0o7777, make_parents, root)
        return _understood(encoding.file_info, answer)

    async def mkdir(
        self, path: bytes, *, mode: int = 0o755, parents: bool = False, root: bool = False
    ) -> FileInfo:
        """Make a directory; with `parents`, those missing too, and an existing one is no error."""
        answer = await self._files.simple(
            wire.MKDIR, path, root=root, option=parents, mode=mode & 0o7777
        )
        return _understood(encoding.file_info, answer)

    async def remove(self, path: bytes, *, recursive: bool = False, root: bool = False) -> None:
        """Remove a file, a symlink (not its target) or an empty directory; or a whole tree."""
        await self._files.simple(wire.REMOVE, path, root=root, option=recursive)

    async def move(
        self, source: bytes, target: bytes, *, replace: bool = True, root: bool = False
    ) -> None:
        """Rename within one file system (EXDEV otherwise)."""
        await self._files.simple(wire.MOVE, source, root=root, option=replace, other=target)

    async def read_tar(self, path: bytes, *, root: bool = False) -> AsyncGenerator[bytes]:
        """A directory's or file's tree as a POSIX (pax) tar, names relative to `path`."""
        sink = ArchiveSink()
        execution = await self._archive(b"pack", path, sink, root)
        try:
            async for chunk in sink.chunks():
                yield chunk
        finally:
            sink.close()
            self._send(wire.control(wire.CANCEL, execution.channel, 0))
        sink.check(path)

    async def write_tar(
        self, path: bytes, chunks: AsyncIterator[bytes], *, root: bool = False
    ) -> int:
        """Unpack a tar (plain, gzip, bzip2 or xz) below a directory, made if missing; returns the
        number of members. Members that would leave `path`, by name or through a link, are
        refused; those unpacked before stay."""
        sink = ArchiveSink()
        execution = await self._archive(b"unpack", path, sink, root)
        try:
            try:
                async for piece in pieces(chunks, wire.MAX_PAYLOAD):
                    await self.stdin(execution.exec_id, execution.stdin.sent, piece)
                await self.end_stdin(execution.exec_id)
            except (StdinClosed, ExecutionNotFound):
                pass  # it failed; its outcome says why
            said = b"".join([chunk async for chunk in sink.chunks()])
        finally:
            sink.close()
            self._send(wire.control(wire.CANCEL, execution.channel, 0))
        sink.check(path)
        return int(said)

    async def _archive(self, verb: bytes, path: bytes, sink: ArchiveSink, root: bool) -> Execution:
        await self._connection()
        self._archives += 1
        exec_id = f"{OWN_PREFIX}archive-{os.getpid()}-{self._archives}"
        spec = StartSpec(exec_id, argv=(verb, path), cwd=b"/", root=root, stdin=True)
        execution = self._session.new(
            exec_id,
            lambda channel: encoding.start_frame(channel, spec, archive=True),
            sink,
            stdin=True,
        )
        await self._begun(execution)
        return execution

    # The connection

    def _execution(self, exec_id: str) -> Execution:
        execution = self._session.find(exec_id)
        if execution is None:
            raise ExecutionNotFound(f"no open execution {exec_id}", exec_id=exec_id)
        return execution

    async def _connection(self) -> Peer:
        """The supervisor's connection; waits for it."""
        while True:
            if not self._connected.is_set():
                try:
                    async with asyncio.timeout(self._away_timeout):
                        await self._connected.wait()
                except TimeoutError:
                    text = "the container's supervisor is not connected"
                    raise SupervisorAway(text) from None
            if self._lost or self._peer is None:
                raise ContainerLost("the container's main process is gone")
            peer = self._peer
            await peer.room()
            if peer is self._peer and self._connected.is_set():
                return peer

    def _send(self, frame: bytes) -> None:
        """Send; after the handshake if one is under way. What is lost with a connection is made
        good by the next handshake."""
        if self._peer is None:
            return
        if self._connected.is_set():
            self._peer.send(frame)
        else:
            self._deferred.append(frame)

    def _accept(self) -> Peer:
        return Peer(self._made, self._arrived, self._gone)

    def _made(self, peer: Peer) -> None:
        self._peers.add(peer)
        self._all_gone.clear()
        if self._lost or (self._expected is not None and peer.pid != self._expected):
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
        for kind, flag, channel, offset, payload in frames:
            if kind == wire.HEARTBEAT:
                continue
            if peer is not self._peer or self._listing is not None:
                self._greeting(peer, kind, channel, payload)
            elif kind in _FILE_KINDS:
                self._files.frame(kind, channel, offset, payload)
            else:
                self._session.frame(kind, flag, channel, offset, payload)

    def _greeting(self, peer: Peer, kind: int, channel: int, payload: bytes) -> None:
        if kind == wire.HELLO:
            version, boot = wire.fields(payload, 2)
            if wire.number(version) != wire.VERSION or peer is self._peer:
                raise wire.ProtocolError("another version, or greeted twice")
            self._replace(peer)
            self._session.booted(wire.text(boot, 64))
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
            frames = await self._session.answer(listing)
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
        self._files.fail_all(away())
        if self._dying is not None:
            self._lose()

    def _lose(self) -> None:
        if self._dying is not None:
            self._dying.cancel()
        if self._lost:
            return
        self._lost = self._session.lost = True
        self._log.info("container lost")
        if self._on_lost is not None:
            self._on_lost()
        for peer in list(self._peers):
            peer.abort()
        self._files.fail_all(ContainerLost("the container's main process is gone"))
        self._session.lose()
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
        for execution in self._session.all():
            if not execution.begun.is_set() and now - execution.made > START_SECONDS:
                execution.give_up(now)
        if not self._lost:
            self._beat = self._loop.call_later(wire.HEARTBEAT_SECONDS, self._check_beat)
