"""Owns the volumes of a node: each container's `/workspace` and `/tmp`, bounded in size.

A volume is a sparse ext4 image, mounted on the host while its container lives. What is there is
found by its path, so that a process that was killed leaves nothing that the next cannot adopt or
remove. Nothing outside of the directory is touched.
"""

import asyncio
import hashlib
import os
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import structlog

from container_runtime.volumes import images, kernel
from container_runtime.volumes.errors import VolumeFailed

log = structlog.get_logger(__name__)
T = TypeVar("T")

STEP_SECONDS = 90.0
"""The most that one step on the disk may take; unmounting writes out what is still in memory."""
TEMPLATES_MAX = 64
"""How many templates are kept; those not used for longest go first."""

WORKSPACE_TARGET, TEMPORARY_TARGET = "/workspace", "/tmp"

Seed = Callable[[Path], Awaitable[bool]]
"""Writes a tar of an image's own `/workspace` to a file, or says that there is none."""


@dataclass(frozen=True, slots=True)
class WritableMount:
    """A directory on the host that a container sees, and may write to, at `target`."""

    source: Path
    target: str


@dataclass(frozen=True, slots=True)
class Usage:
    """How much of a volume is in use."""

    bytes_total: int
    bytes_used: int
    files_total: int
    files_used: int


class Volumes:
    """All volumes below one directory, which one process at a time may use. Belongs to one event
    loop; the work is done in threads. Use `opened`."""

    def __init__(self, directory: Path, problem: str) -> None:
        self._images = directory / "images"
        self._mounts = directory / "mounts"
        self._templates = directory / "templates"
        self._making: dict[Path, asyncio.Lock] = {}
        self.problem = problem
        """Why there are no volumes here; empty where there are."""

    @classmethod
    async def opened(cls, directory: Path, problem: str = "") -> "Volumes":
        """Volumes below `directory`; tries first whether one can be mounted here at all. With a
        `problem` none is tried, and containers have no volumes."""
        # The kernel's table of mounts has real paths.
        volumes = cls(await asyncio.to_thread(directory.resolve), problem)
        if not problem:
            volumes.problem = await _in_thread(lambda: volumes._try())
        return volumes

    @property
    def in_force(self) -> bool:
        """Whether containers have volumes, and so a bound."""
        return not self.problem

    def _try(self) -> str:
        if os.geteuid() != 0:
            return "the runtime does not run as root, so it cannot mount file systems"
        try:
            for folder in (self._images, self._mounts, self._templates):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                folder.chmod(0o700)
            _remove_scratch(self._templates)
            with tempfile.TemporaryDirectory(prefix="making-", dir=self._templates) as scratch:
                images.make_template(Path(scratch, "try"), images.SMALLEST_BYTES, None)
        except (OSError, VolumeFailed) as error:
            return f"a file system in a file cannot be mounted here: {error}"
        return ""

    # One container's volume

    async def make(
        self, volume_id: str, image: str, size_bytes: int, seed: Seed
    ) -> Sequence[WritableMount]:
        """Make and mount a volume that begins with what `image` has in `/workspace`; what must be
        mounted into the container. Nothing where volumes are not in force. Raises
        `VolumeFailed`."""
        if not self.in_force:
            return ()
        template = await self._template(image, size_bytes, seed)
        await _in_thread(lambda: self._copy(volume_id, template))
        return self.mounts_of(volume_id)

    def _copy(self, volume_id: str, template: Path) -> None:
        image = self._image(volume_id)
        image.unlink(missing_ok=True)
        os.utime(template)
        images.copy_sparse(template, image)
        self._mount(volume_id)

    def mounts_of(self, volume_id: str) -> Sequence[WritableMount]:
        """What must be mounted into the container that has this volume."""
        inside = self._mounts / volume_id
        return (
            WritableMount(inside / "workspace", WORKSPACE_TARGET),
            WritableMount(inside / "tmp", TEMPORARY_TARGET),
        )

    async def mount(self, volume_id: str) -> None:
        """Mount a volume unless it is; nothing where it has no image. Raises `VolumeFailed`."""
        await _in_thread(lambda: self._mount(volume_id))

    def _mount(self, volume_id: str) -> None:
        image, target = self._image(volume_id), self._mounts / volume_id
        if not image.exists() or self._is_mounted(target):
            return
        target.mkdir(mode=0o700, exist_ok=True)
        kernel.mount_image(image, target)

    async def unmount(self, volume_id: str) -> None:
        """Unmount a volume and keep its image. Safe to repeat. Raises `VolumeFailed`."""
        await _in_thread(lambda: self._unmount(volume_id, keep=True))

    def _unmount(self, volume_id: str, *, keep: bool) -> None:
        target = self._mounts / volume_id
        if keep and self._is_mounted(target):
            kernel.trim(target)
        if target.exists():
            kernel.unmount(target)
            target.rmdir()

    async def remove(self, volume_id: str) -> None:
        """Unmount a volume and delete it. Safe to repeat. Raises `VolumeFailed`."""
        await _in_thread(lambda: self._remove(volume_id))

    def _remove(self, volume_id: str) -> None:
        self._unmount(volume_id, keep=False)
        self._image(volume_id).unlink(missing_ok=True)

    async def usage(self, volume_id: str) -> Usage | None:
        """How full a mounted volume is; `None` when it is not mounted."""
        return await _in_thread(lambda: self._usage(volume_id))

    def _usage(self, volume_id: str) -> Usage | None:
        target = self._mounts / volume_id
        if not self._is_mounted(target):
            return None
        found = os.statvfs(target)
        return Usage(
            bytes_total=found.f_blocks * found.f_frsize,
            bytes_used=(found.f_blocks - found.f_bfree) * found.f_frsize,
            files_total=found.f_files,
            files_used=found.f_files - found.f_ffree,
        )

    async def check_seen(self, volume_id: str, pid: int) -> None:
        """Raises `VolumeFailed` when a container with this main process does not see its volume:
        then the engine lives among other mounts than this process does."""
        if self.in_force and self._image(volume_id).exists():
            await _in_thread(lambda: self._check_seen(volume_id, pid))

    def _check_seen(self, volume_id: str, pid: int) -> None:
        inside = self._mounts / volume_id
        own = {each.device for each in kernel.mounts() if each.target == inside}
        try:
            seen = {str(each.target): each.device for each in kernel.mounts(str(pid))}
        except (FileNotFoundError, ProcessLookupError):
            return  # it is dead, which others notice
        for target in (WORKSPACE_TARGET, TEMPORARY_TARGET):
            if seen.get(target) not in own:
                raise VolumeFailed(
                    f"the container does not see its own file system at {target}: this process "
                    "and the container engine must share the host's mounts",
                    volume_id=volume_id,
                )

    # Templates

    async def _template(self, image: str, size_bytes: int, seed: Seed) -> Path:
        digest = hashlib.sha256(f"{image}\n{size_bytes}".encode()).hexdigest()[:32]
        path = self._templates / digest
        lock = self._making.setdefault(path, asyncio.Lock())
        try:
            async with lock:
                if not path.exists():
                    await self._make_template(path, size_bytes, seed)
        finally:
            if not lock.locked():
                self._making.pop(path, None)
        return path

    async def _make_template(self, path: Path, size_bytes: int, seed: Seed) -> None:
        content = path.with_name(f"making-{path.name}.tar")
        try:
            found = content if await seed(content) else None
            await _in_thread(lambda: images.make_template(path, size_bytes, found))
        finally:
            content.unlink(missing_ok=True)
        await _in_thread(lambda: _keep_newest(self._templates, TEMPLATES_MAX))

    # After a crash

    async def sweep(self, known: Collection[str]) -> Sequence[str]:
        """Remove the volumes whose ids are not `known`; returns those that were. Raises
        `VolumeFailed`."""
        if not self.in_force:
            return ()
        return await _in_thread(lambda: self._sweep(frozenset(known)))

    def _sweep(self, known: frozenset[str]) -> Sequence[str]:
        there = {each.target.name for each in kernel.mounts() if each.target.parent == self._mounts}
        there |= {path.name for path in self._mounts.iterdir()}
        there |= {path.name.removesuffix(".img") for path in self._images.iterdir()}
        orphans = sorted(there - known)
        for volume_id in orphans:
            self._remove(volume_id)
            log.info("volume removed", volume_id=volume_id)
        kernel.free_loop_devices(self._images.parent)
        return orphans

    def _image(self, volume_id: str) -> Path:
        return self._images / f"{volume_id}.img"

    def _is_mounted(self, target: Path) -> bool:
        try:
            return target.stat().st_dev != self._mounts.stat().st_dev
        except FileNotFoundError:
            return False


def _remove_scratch(templates: Path) -> None:
    """What a process that was killed left while it made a template."""
    for each in kernel.mounts():
        if templates in each.target.parents:
            kernel.unmount(each.target)
    for path in templates.glob("making-*"):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _keep_newest(directory: Path, most: int) -> None:
    paths = [path for path in directory.iterdir() if not path.name.startswith("making-")]
    paths.sort(key=lambda path: path.stat().st_mtime, reverse=True)
    for path in paths[most:]:
        path.unlink(missing_ok=True)


async def _in_thread(work: Callable[[], T]) -> T:
    """`work`, bounded in time, with OSError turned into `VolumeFailed`."""
    try:
        async with asyncio.timeout(STEP_SECONDS):
            return await asyncio.to_thread(work)
    except TimeoutError:
        raise VolumeFailed(f"a step on the disk took more than {STEP_SECONDS:.0f} s") from None
    except OSError as error:
        raise VolumeFailed(f"a volume cannot be used: {error}") from error
