"""File work as the acting user, in threads of its own: every function here may block.

Paths are resolved inside the container by the kernel, with the user's rights. Only regular files
are read and written; nothing waits for a FIFO.
"""

from __future__ import annotations

import os
import stat
from _queue import SimpleQueue
from _thread import start_new_thread
from errno import EINVAL, EISDIR, ELOOP, ENOENT, ENOTDIR

from . import kernel, wire
from .spawning import HOME, USER_ID

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from .loop import Loop
    from .wire import Value

THREADS = 2
MAX_DEPTH = 256
PAGE_BYTES = 524_288


class Workers:
    """Threads that hold the default user's credentials, and root's for the length of a job."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._queue: SimpleQueue[tuple[bool, Callable[[], object], Callable[[object], None]]] = (
            SimpleQueue()
        )
        for _ in range(THREADS):
            start_new_thread(self._run, ())

    def submit(
        self, root: bool, work: Callable[[], object], done: Callable[[object], None]
    ) -> None:
        """Do `work`, then have the loop call `done` with its result or its OSError."""
        self._queue.put((root, work, done))

    def _run(self) -> None:
        kernel.set_groups()
        kernel.become_user(USER_ID, USER_ID)
        kernel.forbid_tracing()
        while True:
            root, work, done = self._queue.get()
            result: object
            if root:
                kernel.become_root()
            try:
                result = work()
            except OSError as problem:
                result = problem
            except Exception as problem:
                result = OSError(EINVAL, f"{type(problem).__name__}: {problem}")
            finally:
                if root:
                    kernel.become_user(USER_ID, USER_ID)
            self._report(done, result)
            del work, done, result

    def _report(self, done: Callable[[object], None], result: object) -> None:
        self._loop.post(lambda: done(result))


def place(path: bytes) -> bytes:
    """The absolute path that is meant."""
    if not path or b"\0" in path:
        raise OSError(EINVAL, "not a path")
    return path if path.startswith(b"/") else os.path.join(HOME, path)


def entry(path: bytes, info: os.stat_result, target: bytes) -> list[Value]:
    """A file's description as packed values."""
    kind = wire.KIND_OTHER
    if stat.S_ISREG(info.st_mode):
        kind = wire.KIND_FILE
    elif stat.S_ISDIR(info.st_mode):
        kind = wire.KIND_DIRECTORY
    elif stat.S_ISLNK(info.st_mode):
        kind = wire.KIND_SYMLINK
    return [
        path,
        kind,
        info.st_size,
        stat.S_IMODE(info.st_mode),
        info.st_uid,
        info.st_gid,
        info.st_mtime_ns,
        target,
    ]


def describe(path: bytes, follow: bool) -> list[Value]:
    """A path's description."""
    info = os.stat(path, follow_symlinks=follow)
    return entry(path, info, os.readlink(path) if stat.S_ISLNK(info.st_mode) else b"")


def simple(
    verb: int, option: bool, path: bytes, other: bytes, limit: int, mode: int
) -> Callable[[], list[Value]]:
    """The work of a verb of one step."""

    def work() -> list[Value]:
        here = place(path)
        if verb == wire.STAT:
            return describe(here, option)
        if verb == wire.LIST:
            return listing(here, other, min(max(limit, 1), wire.MAX_LISTING))
        if verb == wire.MKDIR:
            make_directory(here, mode, option)
            return describe(here, True)
        if verb == wire.REMOVE:
            remove(here, option)
            return []
        if verb == wire.MOVE:
            if option:
                os.rename(here, place(other))
            else:
                kernel.rename_new(here, place(other))
            return []
        raise OSError(EINVAL, "no such verb")

    return work


def listing(path: bytes, after: bytes, limit: int) -> list[Value]:
    """A page of a directory: whether there is more, then entries by name."""
    names = sorted(name for name in os.listdir(path) if name > after)
    entries: list[Value] = []
    size = 0
    for at, name in enumerate(names):
        if len(entries) >= limit or size >= PAGE_BYTES:
            return [1, names[at - 1], entries]
        try:
            described = describe(os.path.join(path, name), False)
        except FileNotFoundError:
            continue
        described[0] = name
        target = described[7]
        size += len(name) + 100 + (len(target) if isinstance(target, bytes) else 0)
        entries.append(described)
    return [0, b"", entries]


def make_directory(path: bytes, mode: int, parents: bool) -> None:
    """Make a directory; with `parents`, also those above, and one that exists is fine."""
    if parents:
        above = os.path.dirname(path.rstrip(b"/"))
        if above and not os.path.isdir(above):
            make_directory(above, 0o755, True)
    try:
        os.mkdir(path, mode)
    except FileExistsError:
        if not parents or not os.path.isdir(path):
            raise
        return
    os.chmod(path, mode)


def remove(path: bytes, recursive: bool) -> None:
    """Remove a file, link or empty directory; or a tree, never through a link."""
    info = os.lstat(path)
    if not stat.S_ISDIR(info.st_mode):
        os.unlink(path)
    elif not recursive:
        os.rmdir(path)
    else:
        above = os.open(os.path.dirname(path.rstrip(b"/")) or b"/", os.O_PATH | os.O_CLOEXEC)
        try:
            _remove_tree(above, os.path.basename(path.rstrip(b"/")), 0)
        finally:
            os.close(above)


def _remove_tree(above: int, name: bytes, depth: int) -> None:
    if depth > MAX_DEPTH:
        raise OSError(ELOOP, f"deeper than {MAX_DEPTH} directories")
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    folder = os.open(name, flags, dir_fd=above)
    try:
        with os.scandir(folder) as entries:
            names = [(os.fsencode(e.name), e.is_dir(follow_symlinks=False)) for e in entries]
        for inner, is_directory in names:
            if is_directory:
                _remove_tree(folder, inner, depth + 1)
            else:
                os.unlink(inner, dir_fd=folder)
    finally:
        os.close(folder)
    os.rmdir(name, dir_fd=above)


def open_regular(path: bytes) -> tuple[int, list[Value]]:
    """Open a regular file for reading."""
    here = place(path)
    fd = os.open(here, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        info = os.fstat(fd)
        if stat.S_ISDIR(info.st_mode):
            raise OSError(EISDIR, os.strerror(EISDIR))
        if not stat.S_ISREG(info.st_mode):
            raise OSError(EINVAL, "not a regular file")
    except BaseException:
        os.close(fd)
        raise
    return fd, entry(here, info, b"")


def read_at(fd: int, size: int, at: int) -> bytes:
    """Bytes of a file; empty at its end."""
    return os.pread(fd, size, at) if size else b""


def close(fd: int) -> None:
    """Close a file."""
    os.close(fd)


class Replacement:
    """A file's new content beside it, until `commit` puts it in place or `discard` removes it.

    What was there keeps its mode, and its owner when root replaces it."""

    def __init__(self, path: bytes, mode: int, parents: bool, root: bool) -> None:
        self._path, self._mode, self._parents, self._root = path, mode, parents, root
        self._folder = self._fd = -1
        self._name = self._temporary = b""

    def open(self) -> None:
        """Make the temporary file in the target's own directory."""
        if self._path.endswith(b"/"):
            raise OSError(EISDIR, os.strerror(EISDIR))
        path = os.path.realpath(place(self._path))
        above, self._name = os.path.split(path)
        if self._parents:
            make_directory(above, 0o755, True)
        self._folder = os.open(above, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        self._existing()
        self._temporary = b".workroom-" + os.urandom(8).hex().encode()
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        self._fd = os.open(self._temporary, flags, 0o600, dir_fd=self._folder)

    def _existing(self) -> os.stat_result | None:
        try:
            info = os.stat(self._name, dir_fd=self._folder, follow_symlinks=False)
        except FileNotFoundError:
            return None
        if stat.S_ISDIR(info.st_mode):
            raise OSError(EISDIR, os.strerror(EISDIR))
        if not stat.S_ISREG(info.st_mode):
            raise OSError(EINVAL, "not a regular file")
        return info

    def write(self, chunks: list[bytes]) -> int:
        """Append; the number of bytes."""
        count = 0
        for chunk in chunks:
            left = memoryview(chunk)
            while left:
                written = os.write(self._fd, left)
                left = left[written:]
                count += written
        return count

    def commit(self) -> list[Value]:
        """Put it in place; its description."""
        before = self._existing()
        mode = self._mode
        if before is not None:
            mode = stat.S_IMODE(before.st_mode)
            if self._root:
                os.fchown(self._fd, before.st_uid, before.st_gid)
        os.fchmod(self._fd, mode)
        os.rename(self._temporary, self._name, src_dir_fd=self._folder, dst_dir_fd=self._folder)
        self._temporary = b""
        info = os.fstat(self._fd)
        self.discard()
        return entry(os.path.realpath(place(self._path)), info, b"")

    def discard(self) -> None:
        """Close, and remove what was not put in place."""
        if self._temporary:
            try:
                os.unlink(self._temporary, dir_fd=self._folder)
            except OSError as problem:
                if problem.errno not in (ENOENT, ENOTDIR):
                    raise
            self._temporary = b""
        for fd in (self._fd, self._folder):
            if fd >= 0:
                os.close(fd)
        self._fd = self._folder = -1
