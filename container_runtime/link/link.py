"""The host's side of one container's supervisor: starts, feeds, signals and drains executions.

Knows the wire, not the engine: the engine tells it the container's main process, and outputs go
to a `Sink`.
"""

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

from container_runtime.agent import wire
from container_runtime.link import encoding
from container_runtime.link.archives import ArchiveSink, pieces
from container_runtime.link.attachment import Attachment
from container_runtime.link.errors import ExecutionNotFound, StdinClosed, SupervisorAway
from container_runtime.link.execution import Execution
from container_runtime.link.session import OWN_PREFIX
from container_runtime.model import (
    ExecutionStatus,
    FileInfo,
    FilePage,
    PtySize,
    Sink,
    StartSpec,
)
from workroom.errors import InvalidField

T = TypeVar("T")


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
        self._attachment = Attachment(directory, sink, tasks, container_id, on_lost, away_timeout)
        self._session = self._attachment.session
        self._files = self._attachment.files
        self._send = self._attachment.send
        self._archives = 0

    @property
    def connected(self) -> bool:
        """Whether the supervisor is connected and resumed now."""
        return self._attachment.connected

    @property
    def lost(self) -> bool:
        """Whether the container's main process is gone (final)."""
        return self._attachment.lost

    async def open(self) -> None:
        """Listen on the directory's socket. OSError when it cannot be made."""
        await self._attachment.open()

    def expect(self, pid: int) -> None:
        """Accept the supervisor only from this process (host pid, from the engine's inspect).

        Until it is called, a connection waits. The process is watched from here on."""
        self._attachment.expect(pid)

    async def ready(self) -> None:
        """Wait until connected. Raises `SupervisorAway` or `ContainerLost`."""
        await self._attachment.connection()

    def container_died(self) -> None:
        """Say that the engine saw the container die, should it know before the kernel tells."""
        self._attachment.container_died()

    async def close(self) -> None:
        """Stop listening and end this link's tasks. Executions go on in the container."""
        await self._attachment.close()

    # Executions

    async def start(self, spec: StartSpec) -> ExecutionStatus:
        """Start an execution, or join the one that has this id; returns once the command runs or
        has ended (a failing start is an outcome for the sink, not an error).

        Raises InvalidField, TooManyExecutions, ExecutionRepeated, SupervisorAway, ContainerLost.
        After SupervisorAway the execution may or may not run: call again with the same id."""
        execution = self._session.find(spec.exec_id)
        if execution is None:
            encoding.check(spec)
            if not self._attachment.ready:
                await self._attachment.connection()
            execution = self._session.find(spec.exec_id) or self._session.new(
                spec.exec_id,
                lambda channel: encoding.start_frame(channel, spec),
                None,
                stdin=spec.stdin or spec.pty is not None,
            )
        await self._begun(execution)
        return execution.status()

    async def _begun(self, execution: Execution) -> None:
        # Bounded by the attachment's beat: a timer for each start would cost too much.
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
                peer = await self._attachment.connection()
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
                await self._attachment.connection()
                stdin.end = stdin.sent
                self._send(wire.frame(wire.STDIN_END, execution.channel, offset=stdin.sent))

    async def signal(self, exec_id: str, signal: int) -> None:
        """Send a signal (1..64) to the execution's process group."""
        if not 1 <= signal <= 64:
            raise InvalidField("signal", "must be 1..64")
        execution = self._execution(exec_id)
        await self._attachment.connection()
        self._send(wire.frame(wire.SIGNAL, execution.channel, offset=signal))

    async def cancel(self, exec_id: str, grace: timedelta | None = None) -> None:
        """TERM the whole tree, KILL it after `grace` (the spec's by default). Idempotent; returns
        once the supervisor was told, the outcome comes through the sink."""
        milliseconds = -1
        if grace is not None:
            milliseconds = min(max(0, encoding.milliseconds(grace)), wire.MAX_GRACE_MS)
        execution = self._execution(exec_id)
        execution.cancel = wire.control(wire.CANCEL, execution.channel, milliseconds)
        await self._attachment.connection()
        self._send(execution.cancel)

    async def resize(self, exec_id: str, size: PtySize) -> None:
        """Resize the execution's PTY; nothing happens when it has none."""
        encoding.check_size(size)
        execution = self._execution(exec_id)
        await self._attachment.connection()
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
        await self._attachment.connection()
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

    def _execution(self, exec_id: str) -> Execution:
        execution = self._session.find(exec_id)
        if execution is None:
            raise ExecutionNotFound(f"no open execution {exec_id}", exec_id=exec_id)
        return execution
