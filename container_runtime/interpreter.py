"""Collects the interpreter that the supervisor brings into any image, and says how to start it.

Knows mounts and command lines as plain values, not the engine.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

BUNDLE_TARGET = "/run/workroom/python"
"""Where the bundle is mounted inside a container."""

SOCKET_TARGET = "/run/workroom/link"
"""Where a link's directory is mounted inside a container."""

CAPABILITIES = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "SETUID", "SETGID", "KILL")
"""All that the container's main process (uid 0) needs and root commands get."""


@dataclass(frozen=True, slots=True)
class Mount:
    """A read-only bind mount."""

    source: Path
    target: str


@dataclass(frozen=True, slots=True)
class Bundle:
    """A collected interpreter; the directory's name is a digest of its contents."""

    directory: Path
    loader: str
    """The loader's file name within the bundle."""


def collect(state_dir: Path) -> Bundle:
    """Collect this process's own interpreter below `state_dir`, once per content; blocking, 1 s at
    first, milliseconds later. Safe to call from several processes at once."""
    raise NotImplementedError


def supervisor_mounts(bundle: Bundle, link_directory: Path) -> Sequence[Mount]:
    """What must be mounted, read-only, for the supervisor to run."""
    raise NotImplementedError


def supervisor_command(bundle: Bundle) -> Sequence[str]:
    """The container's entrypoint (the image's own entrypoint and command must be replaced by it).

    Run it as user "0:0", with `CAPABILITIES`, no init of the engine's, no TTY, working directory
    "/", and OOM score adjustment 0."""
    raise NotImplementedError
