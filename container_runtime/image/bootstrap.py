"""Owns where the base image comes from: already here, pulled, or made out of Debian packages."""

import os
import shutil
import tempfile
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from container_runtime.setup import debian
from container_runtime.setup.api import EngineApi
from container_runtime.setup.errors import (
    BaseImageUnavailable,
    EngineCallFailed,
    InstallFailed,
)
from container_runtime.setup.processes import Progress, run

PULL_SILENCE = timedelta(seconds=20)
PULL_TIMEOUT = timedelta(minutes=10)
BOOTSTRAP_TIMEOUT = timedelta(minutes=10)
SUITE = "bookworm"
BOOTSTRAPPED = ("workroom/debian", SUITE)
TOOL = "mmdebstrap"
LEFT_OUT = ("/usr/share/man/*", "/usr/share/info/*", "/usr/share/doc/*", "/usr/share/locale/*")
KEPT = "/usr/share/doc/*/copyright"
LABEL = "workroom.bootstrapped"


@dataclass(frozen=True)
class BaseImage:
    """A local image to build on. `origin` is `local`, `pulled` or `bootstrapped`."""

    reference: str
    origin: str


async def ensure_base_image(engine: EngineApi, wanted: str, progress: Progress) -> BaseImage:
    """Returns the wanted base image, pulling it if need be.

    Where it cannot be pulled, a minimal Debian is made from packages instead and kept as
    `workroom/debian:bookworm`. Raises BaseImageUnavailable, which tells both failures.
    """
    if await engine.image_id(wanted):
        return BaseImage(wanted, "local")
    bootstrapped = ":".join(BOOTSTRAPPED)
    if await engine.image_id(bootstrapped):
        return BaseImage(bootstrapped, "bootstrapped")
    progress(f"pulling {wanted}")
    try:
        await engine.pull(wanted, silence=PULL_SILENCE, timeout=PULL_TIMEOUT)
    except EngineCallFailed as error:
        progress(f"{wanted} cannot be pulled ({error.message}); making a base with {TOOL}")
        await _bootstrap(engine, wanted, error.message, progress)
        return BaseImage(bootstrapped, "bootstrapped")
    return BaseImage(wanted, "pulled")


async def _bootstrap(engine: EngineApi, wanted: str, pull: str, progress: Progress) -> None:
    if shutil.which(TOOL) is None:
        await _install_tool(wanted, pull, progress)
    with tempfile.TemporaryDirectory(prefix="workroom-base-") as folder:
        os.chmod(folder, 0o755)  # apt's own user reads what is made in it
        archive = Path(folder, "root.tar")
        options = [f"--dpkgopt=path-exclude={pattern}" for pattern in LEFT_OUT]
        made = await run(
            *(TOOL, "--variant=minbase", *options, f"--dpkgopt=path-include={KEPT}"),
            "--dpkgopt=force-unsafe-io",  # an image that a crash may spoil is made anew
            *(SUITE, str(archive)),
            timeout=BOOTSTRAP_TIMEOUT,
            environment={"TMPDIR": folder},
        )
        if made.code != 0:
            raise _unavailable(wanted, pull, f"{TOOL} failed with {made.code}:\n{made.tail()}")
        progress("importing the base into the engine")
        await engine.import_image(archive, *BOOTSTRAPPED, labels={LABEL: SUITE})


async def _install_tool(wanted: str, pull: str, progress: Progress) -> None:
    if not debian.can_install():
        raise _unavailable(
            wanted, pull, f"{TOOL} is not installed, and only root on Debian may install it here"
        )
    try:
        await debian.install(TOOL, "debian-archive-keyring", progress=progress)
    except InstallFailed as error:
        raise _unavailable(wanted, pull, error.message) from error


def _unavailable(wanted: str, pull: str, bootstrap: str) -> BaseImageUnavailable:
    return BaseImageUnavailable(
        f"there is no base image. Pulling {wanted} failed: {pull}\n"
        f"Making one from Debian packages failed, too: {bootstrap}\n"
        f"Make a registry reachable, or load {wanted} by `docker load`, or name an image that "
        f"can be had in RUNTIME_BASE_IMAGE (Debian or a relative), or install {TOOL}, then try "
        "again",
        image=wanted,
    )
