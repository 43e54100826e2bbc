"""The host's side of one container's supervisor: starts, feeds, signals and drains executions.

Knows the wire, not the engine: the engine tells it the container's main process, and outputs go
to a `Sink`.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import timedelta
from pathlib import Path

from container_runtime.model import (
    ExecutionStatus,
    FileInfo,
    FilePage,
    PtySize,
    Sink,
    StartSpec,
)


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
        raise NotImplementedError

    @property
    def connected(self) -> bool:
        """Whether the supervisor is connected and resumed now."""
        raise NotImplementedError

    @property
    def lost(self) -> bool:
        """Whether the container's main process is gone (final)."""
        raise NotImplementedError

    async def open(self) -> None:
        """Listen on the directory's socket. OSError when it cannot be made."""

    def expect(self, pid: int) -> None:
        """Accept the supervisor only from this process (host pid, from the engine's inspect).

        Until it is called, a connection waits. The process is watched from here on."""

    async def ready(self) -> None:
        """Wait until connected. Raises `SupervisorAway` or `ContainerLost`."""

    def container_died(self) -> None:
        """Say that the engine saw the container die, should it know before the kernel tells."""

    async def close(self) -> None:
        """Stop listening and end this link's tasks. Executions go on in the container."""

    # Executions

    async def start(self, spec: StartSpec) -> ExecutionStatus:
        """Start an execution, or join the one that has this id; returns once the command runs or
        has ended (a failing start is an outcome for the sink, not an error).

        Raises InvalidField, TooManyExecutions, SupervisorAway, ContainerLost. After
        SupervisorAway the execution may or may not run: call again with the same id."""
        raise NotImplementedError

    def status(self, exec_id: str) -> ExecutionStatus:
        """Raises ExecutionNotFound."""
        raise NotImplementedError

    def executions(self) -> Sequence[ExecutionStatus]:
        """All executions that are not recorded as ended."""
        raise NotImplementedError

    async def stdin(self, exec_id: str, offset: int, data: bytes) -> None:
        """Send stdin from byte `offset`. What arrived before is skipped, so re-sending is safe.

        Waits while the command does not read (256 KiB are in flight). Raises StdinGap,
        StdinClosed, ExecutionNotFound, SupervisorAway, ContainerLost."""

    async def end_stdin(self, exec_id: str) -> None:
        """End stdin after all that was sent: EOF on a pipe, ^D on a PTY. Idempotent."""

    async def signal(self, exec_id: str, signal: int) -> None:
        """Send a signal (1..64) to the execution's process group."""

    async def cancel(self, exec_id: str, grace: timedelta | None = None) -> None:
        """TERM the whole tree, KILL it after `grace` (the spec's by default). Idempotent; returns
        once the supervisor was told, the outcome comes through the sink."""

    async def resize(self, exec_id: str, size: PtySize) -> None:
        """Resize the execution's PTY; nothing happens when it has none."""

    # Files inside the container, as the unprivileged user unless `root`. Paths are absolute or
    # relative to /workspace. All raise FileError and its kinds, SupervisorAway, ContainerLost.

    async def stat(self, path: bytes, *, root: bool = False, follow: bool = True) -> FileInfo:
        raise NotImplementedError

    async def list_files(
        self, path: bytes, *, after: bytes = b"", limit: int = 1000, root: bool = False
    ) -> FilePage:
        """One directory's entries, by name, beginning after `after`; at most 1,000 a page. Entry
        paths are the directory's path and the name."""
        raise NotImplementedError

    def read_file(
        self, path: bytes, *, offset: int = 0, length: int | None = None, root: bool = False
    ) -> AsyncIterator[bytes]:
        """A regular file's bytes in chunks of at most 64 KiB, never more than 256 KiB ahead of
        the consumer. Close the iterator to stop early."""
        raise NotImplementedError

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
        call is cancelled, whatever was there before stays. Chunks may have any size."""
        raise NotImplementedError

    async def mkdir(
        self, path: bytes, *, mode: int = 0o755, parents: bool = False, root: bool = False
    ) -> FileInfo:
        """Make a directory; with `parents`, those missing too, and an existing one is no error."""
        raise NotImplementedError

    async def remove(self, path: bytes, *, recursive: bool = False, root: bool = False) -> None:
        """Remove a file, a symlink (not its target) or an empty directory; or a whole tree."""

    async def move(
        self, source: bytes, target: bytes, *, replace: bool = True, root: bool = False
    ) -> None:
        """Rename within one file system (EXDEV otherwise)."""

    def read_tar(self, path: bytes, *, root: bool = False) -> AsyncIterator[bytes]:
        """A directory's or file's tree as a POSIX (pax) tar, names relative to `path`."""
        raise NotImplementedError

    async def write_tar(
        self, path: bytes, chunks: AsyncIterator[bytes], *, root: bool = False
    ) -> int:
        """Unpack a tar below a directory, made if missing; returns the number of members. Members
        that would leave `path`, by name or through a link, are refused."""
        raise NotImplementedError
