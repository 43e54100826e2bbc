"""Owns the installation of Debian packages. Knows nothing of engines or images."""

import os
import shutil
from datetime import timedelta
from pathlib import Path

from container_runtime.setup.errors import InstallFailed
from container_runtime.setup.processes import Finished, Progress, run

UPDATE_TIMEOUT = timedelta(minutes=5)
INSTALL_TIMEOUT = timedelta(minutes=15)
LOCK_WAIT = "DPkg::Lock::Timeout=300"  # seconds; another apt may be at work
INTERRUPTED = "dpkg was interrupted"
QUIET = {"DEBIAN_FRONTEND": "noninteractive", "NEEDRESTART_MODE": "l", "LC_ALL": "C.UTF-8"}


def can_install() -> bool:
    """Whether this process may install packages: root on Debian or on a relative of it."""
    return os.geteuid() == 0 and shutil.which("apt-get") is not None and _is_debian()


async def install(*packages: str, progress: Progress) -> None:
    """Installs `packages` without their recommendations.

    Raises InstallFailed with the end of apt's output. A failed `apt-get update` alone is not
    fatal, because one unreachable third-party source makes it fail.
    """
    names = " ".join(packages)
    progress("apt-get update")
    updated = await run(
        "apt-get", "-q", "-o", LOCK_WAIT, "update", timeout=UPDATE_TIMEOUT, environment=QUIET
    )
    progress(f"apt-get install {names}")
    installed = await _apt_install(packages)
    if INTERRUPTED in installed.output:
        progress("finishing an installation that was interrupted (dpkg --configure -a)")
        await run("dpkg", "--configure", "-a", timeout=INSTALL_TIMEOUT, environment=QUIET)
        installed = await _apt_install(packages)
    if installed.code == 0:
        return
    update_problem = "" if updated.code == 0 else f"\napt-get update failed:\n{updated.tail()}"
    raise InstallFailed(
        f"apt-get install {names} failed with {installed.code}:\n{installed.tail()}"
        f"{update_problem}\nSee that apt works here (network, sources, free disk space), "
        "then try again",
        packages=names,
    )


async def _apt_install(packages: tuple[str, ...]) -> Finished:
    return await run(
        *("apt-get", "-q", "-y", "-o", LOCK_WAIT, "install", "--no-install-recommends"),
        *packages,
        timeout=INSTALL_TIMEOUT,
        environment=QUIET,
    )


def _is_debian(release: Path = Path("/etc/os-release")) -> bool:
    try:
        lines = release.read_text().splitlines()
    except OSError:
        return False
    values = dict(line.split("=", 1) for line in lines if "=" in line)
    families = f"{values.get('ID', '')} {values.get('ID_LIKE', '')}".replace('"', "").split()
    return "debian" in families
