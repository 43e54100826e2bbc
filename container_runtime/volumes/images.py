"""Owns the files that hold volumes: templates made once, and sparse copies of them.

Every function blocks and raises OSError or `VolumeFailed`.
"""

import errno
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from container_runtime.volumes.errors import VolumeFailed
from container_runtime.volumes.kernel import mount_image, unmount

USER = 1000
"""Who owns `/workspace`."""
JOURNAL_MIB = 16
SMALLEST_BYTES = 64 * 2**20

_MKFS_SECONDS = 60
_UNPACK_SECONDS = 300
_COPY_BYTES = 16 * 2**20

# Runs with the volume as its root directory, so that no name and no link in an archive that
# somebody else made leads out of it.
_UNPACK = """
import os, sys, tarfile
os.chroot(sys.argv[1])
os.chdir("/")
with tarfile.open(fileobj=sys.stdin.buffer, mode="r|") as archive:
    for member in archive:
        if member.isreg() or member.isdir() or member.issym() or member.islnk():
            archive.extract(member, "/", numeric_owner=True, filter="fully_trusted")
"""


def make_template(path: Path, size_bytes: int, content: Path | None) -> None:
    """Make an ext4 image with `workspace` and `tmp` in it, where `path` is not yet.

    `content` is a tar of a directory called `workspace`, for instance an image's own.
    """
    with tempfile.TemporaryDirectory(prefix="making-", dir=path.parent) as scratch:
        image, inside = Path(scratch, "image"), Path(scratch, "inside")
        inside.mkdir(mode=0o700)
        _format(image, size_bytes)
        mount_image(image, inside)
        try:
            _fill(inside, content)
        finally:
            unmount(inside)
        image.rename(path)


def _format(image: Path, size_bytes: int) -> None:
    program = shutil.which("mkfs.ext4", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if program is None:
        raise VolumeFailed("mkfs.ext4 is not installed (package e2fsprogs)")
    with open(image, "wb") as file:
        file.truncate(max(size_bytes, SMALLEST_BYTES))
    # Tables are left for the kernel to write when they are needed: an empty image takes 200 KiB.
    lazily = "lazy_itable_init=1,lazy_journal_init=1,nodiscard"
    made = subprocess.run(
        [program, "-q", "-F", "-m", "0", "-E", lazily, "-O", "^resize_inode"]
        + ["-J", f"size={JOURNAL_MIB}", str(image)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        timeout=_MKFS_SECONDS,
        check=False,
    )
    if made.returncode != 0:
        problem = made.stderr.decode(errors="replace").strip()
        raise VolumeFailed(f"mkfs.ext4 failed with {made.returncode}: {problem}")


def _fill(inside: Path, content: Path | None) -> None:
    if content is not None:
        _unpack(inside, content)
    workspace, temporary = inside / "workspace", inside / "tmp"
    if not workspace.is_dir() or workspace.is_symlink():
        workspace.mkdir(mode=0o755)
    os.chown(workspace, USER, USER)
    temporary.mkdir(exist_ok=True)
    os.chown(temporary, 0, 0)
    temporary.chmod(0o1777)


def _unpack(inside: Path, content: Path) -> None:
    with open(content, "rb") as archive:
        done = subprocess.run(
            [sys.executable, "-I", "-c", _UNPACK, str(inside)],
            stdin=archive,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=_UNPACK_SECONDS,
            check=False,
        )
    if done.returncode != 0:
        lines = done.stderr.decode(errors="replace").strip().splitlines() or ["no reason given"]
        raise VolumeFailed(f"the image's /workspace cannot be copied: {lines[-1]}")


def copy_sparse(source: Path, target: Path) -> None:
    """Copy a file's data and leave its holes; blocks are shared where the file system can."""
    with open(source, "rb") as read, open(target, "xb") as write:
        os.fchmod(write.fileno(), 0o600)
        size = os.fstat(read.fileno()).st_size
        write.truncate(size)
        at = 0
        while (start := _next_data(read.fileno(), at)) is not None:
            at = os.lseek(read.fileno(), start, os.SEEK_HOLE)
            _copy_range(read.fileno(), write.fileno(), start, at)


def _next_data(descriptor: int, offset: int) -> int | None:
    try:
        return os.lseek(descriptor, offset, os.SEEK_DATA)
    except OSError as error:
        if error.errno == errno.ENXIO:  # nothing but a hole follows
            return None
        raise


def _copy_range(source: int, target: int, start: int, end: int) -> None:
    while start < end:
        copied = os.copy_file_range(source, target, min(end - start, _COPY_BYTES), start, start)
        if copied == 0:
            raise VolumeFailed("a template became shorter while it was copied")
        start += copied
