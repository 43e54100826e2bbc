"""Owns the system calls behind volumes: loop devices, mounting, and the table of mounts.

Every function blocks and raises OSError. A loop device made here frees itself when its mount, or
the process that was about to mount it, is gone.
"""

import ctypes
import errno
import fcntl
import os
import re
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_LOOP_CLR_FD, _LOOP_CONFIGURE, _LOOP_CTL_GET_FREE = 0x4C01, 0x4C0A, 0x4C82
_LO_FLAGS_AUTOCLEAR = 4
_FITRIM = 0xC0185879
_LOOP_CONFIG = struct.Struct("=II 5Q 4I 64s 64s 32s 2Q 8Q")
_TAKEN_TRIES = 64

_MS_NOSUID, _MS_NODEV, _MS_RELATIME = 2, 4, 1 << 21
_MNT_DETACH = 2
_BUSY_SECONDS = 5.0
_BUSY_PAUSE = 0.02

_ESCAPE = re.compile(r"\\([0-7]{3})")
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class Mounted:
    """One line of a table of mounts."""

    target: Path
    device: str
    """`major:minor`."""
    root: str
    """The directory of its file system that is seen at the target."""


def mount_image(image: Path, target: Path) -> None:
    """Mount an ext4 image on a directory, without set-uid programs and devices in it. Blocks that
    are freed in it go back to the disk that holds the image."""
    with _loop_device(image) as device:
        _check(
            _libc.mount(
                os.fsencode(device),
                os.fsencode(target),
                b"ext4",
                ctypes.c_ulong(_MS_NOSUID | _MS_NODEV | _MS_RELATIME),
                b"discard",
            ),
            target,
        )


@contextmanager
def _loop_device(image: Path) -> Iterator[str]:
    """A loop device over an image; open for the body, and then for as long as it is mounted."""
    backing = os.open(image, os.O_RDWR | os.O_CLOEXEC)
    try:
        control = os.open("/dev/loop-control", os.O_RDWR | os.O_CLOEXEC)
        try:
            name, device = _configured(control, backing, os.fsencode(image))
        finally:
            os.close(control)
    finally:
        os.close(backing)
    try:
        yield name
    finally:
        os.close(device)


def _configured(control: int, backing: int, label: bytes) -> tuple[str, int]:
    flags = (0, 0, 0, _LO_FLAGS_AUTOCLEAR)
    empty = (b"", b"", 0, 0)
    config = _LOOP_CONFIG.pack(backing, 0, *(0,) * 5, *flags, label[-63:], *empty, *(0,) * 8)
    for _ in range(_TAKEN_TRIES):
        name = f"/dev/loop{fcntl.ioctl(control, _LOOP_CTL_GET_FREE)}"
        device = os.open(name, os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.ioctl(device, _LOOP_CONFIGURE, config)
        except OSError as error:
            os.close(device)
            if error.errno != errno.EBUSY:  # somebody else took it meanwhile
                raise
        except BaseException:
            os.close(device)
            raise
        else:
            return name, device
    raise OSError(errno.EBUSY, "no loop device stays free for long enough")


def unmount(target: Path) -> None:
    """Unmount a directory; no error where nothing is mounted. One that stays busy is detached:
    it then ends with its last user."""
    until = time.monotonic() + _BUSY_SECONDS
    while True:
        flags = 0 if time.monotonic() < until else _MNT_DETACH
        if _libc.umount2(os.fsencode(target), flags) == 0:
            return
        number = ctypes.get_errno()
        if number in (errno.EINVAL, errno.ENOENT):
            return
        if number != errno.EBUSY or flags:
            raise OSError(number, os.strerror(number), str(target))
        time.sleep(_BUSY_PAUSE)


def trim(target: Path) -> None:
    """Give the blocks that are free in a mounted file system back to the disk that holds it;
    where that cannot be done they stay taken."""
    descriptor = os.open(target, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _check(_libc.syncfs(descriptor), target)  # blocks are free once their deletion is written
        fcntl.ioctl(descriptor, _FITRIM, struct.pack("=QQQ", 0, 2**64 - 1, 0))
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EIO, errno.EROFS, errno.ENOSPC):
            raise
    finally:
        os.close(descriptor)


def mounts(process: str = "self") -> list[Mounted]:
    """Everything that a process (its id, or `self`) sees mounted, in the order of mounting."""
    with open(f"/proc/{process}/mountinfo", "rb") as table:
        return [_mounted(os.fsdecode(line)) for line in table]


def _mounted(line: str) -> Mounted:
    fields = line.split(" ", 5)
    return Mounted(Path(_plain(fields[4])), fields[2], _plain(fields[3]))


def _plain(escaped: str) -> str:
    return _ESCAPE.sub(lambda found: chr(int(found[1], 8)), escaped)


def free_loop_devices(directory: Path) -> int:
    """Free the loop devices over files below `directory` that are not mounted; how many were."""
    in_use = {each.device for each in mounts()}
    prefix = f"{directory}/"
    freed = 0
    for found in Path("/sys/block").glob("loop*/loop/backing_file"):
        try:
            backing = found.read_text().rstrip("\n")
            number = found.parent.parent.joinpath("dev").read_text().strip()
        except OSError:
            continue  # freed meanwhile
        if backing.startswith(prefix) and number not in in_use:
            device = os.open(f"/dev/{found.parent.parent.name}", os.O_RDONLY | os.O_CLOEXEC)
            try:
                fcntl.ioctl(device, _LOOP_CLR_FD)
                freed += 1
            except OSError as error:
                if error.errno not in (errno.ENXIO, errno.EBUSY):
                    raise
            finally:
                os.close(device)
    return freed


def _check(result: int, path: Path) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(path))
