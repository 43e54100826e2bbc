"""Finds what a test has left running."""

from pathlib import Path


def processes_that_mention(mark: str) -> list[str]:
    """The command lines in which `mark` occurs, of every process that is alive."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = entry.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if mark in line:
            found.append(line)
    return found
