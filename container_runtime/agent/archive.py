"""Packs and unpacks tar archives inside the container; runs as a command of its own.

`python3 -I -S -c 'from agent.archive import main; main()' pack|unpack PATH`: the archive goes to
stdout or comes from stdin. A separate process, so that its memory and waiting are its own.
"""

from __future__ import annotations

import os
import sys
import tarfile

HOME = "/workspace"


def main() -> None:
    """Do what the arguments say; one line on stderr and status 1 when it fails."""
    verb, path = sys.argv[1], os.path.join(HOME, sys.argv[2])
    try:
        if verb == "pack":
            pack(path)
        else:
            unpack(path)
    except (OSError, tarfile.TarError, EOFError) as problem:
        number = problem.errno if isinstance(problem, OSError) else None
        reason = problem.strerror if isinstance(problem, OSError) else None
        sys.stderr.write(f"{number or 22} {reason or problem}")
        sys.exit(1)


def pack(path: str) -> None:
    """Write a tree; sockets, which no archive can hold, are left out."""
    os.stat(path)
    top = "." if os.path.isdir(path) else os.path.basename(path)
    with tarfile.open(
        fileobj=sys.stdout.buffer, mode="w|", format=tarfile.PAX_FORMAT, bufsize=65_536
    ) as archive:
        archive.add(path, arcname=top)


def unpack(path: str) -> None:
    """Unpack below a directory; members that would leave it are refused."""
    os.makedirs(path, exist_ok=True)
    count = 0
    with tarfile.open(fileobj=sys.stdin.buffer, mode="r|*", bufsize=65_536) as archive:
        for member in archive:
            archive.extract(member, path, filter="data")
            count += 1
    while sys.stdin.buffer.read(65_536):
        pass
    sys.stdout.write(str(count))
