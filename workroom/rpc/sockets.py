"""Owns a unix socket's place in the file system: its folder, its lock, what is left of a crash."""

import errno
import fcntl
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc

from workroom.errors import WorkroomError
from workroom.paths import UnusablePath, check_socket_path


class AddressInUse(WorkroomError):
    """Another server listens on the address."""

    code = grpc.StatusCode.FAILED_PRECONDITION
    reason = "ADDRESS_IN_USE"


@contextmanager
def claimed(path: Path) -> Iterator[None]:
    """Holds `path` for one server: nothing is there when the body begins, nor when it has ended.

    The folder is made with mode 0700 where it is missing, and must be ours and closed to others:
    then nobody else reaches the socket between its creation and `restrict`. Raises `UnusablePath`
    where it is not, and `AddressInUse` while another server holds or answers on the path.
    """
    check_socket_path(path)
    _check_folder(path.parent)
    with _locked(path):
        _remove_stale(path)
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def restrict(path: Path) -> None:
    """Lets only the owner open the socket."""
    path.chmod(0o600)


def _check_folder(folder: Path) -> None:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.stat()
    if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
        raise UnusablePath(
            f"{folder} must belong to uid {os.geteuid()} with mode 0700 to hold a socket, "
            f"but belongs to uid {found.st_uid} with mode {stat.S_IMODE(found.st_mode):04o}",
            path=str(folder),
        )


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    lock = path.with_name(f".{path.name}.lock")
    while True:
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise _in_use(path) from None
        if _still_names(lock, descriptor):
            break
        os.close(descriptor)  # its holder removed the file between our open and our lock
    try:
        yield
    finally:
        lock.unlink(missing_ok=True)
        os.close(descriptor)


def _still_names(lock: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(lock.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _remove_stale(path: Path) -> None:
    try:
        found = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise UnusablePath(f"{path} exists and is not a socket", path=str(path))
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        result = probe.connect_ex(str(path))
    if result not in (errno.ECONNREFUSED, errno.ENOENT):
        raise _in_use(path)
    path.unlink(missing_ok=True)


def _in_use(path: Path) -> AddressInUse:
    return AddressInUse(f"another server listens on unix:{path}", address=f"unix:{path}")
