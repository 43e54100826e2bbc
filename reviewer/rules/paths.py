"""Owns what can be said of a path from its text alone: where it leads and whether it matters.

Links are not followed and nothing is looked up; the file system may differ from the text.
"""

import posixpath
import re
from collections.abc import Sequence
from dataclasses import dataclass

UNKNOWN = "\0"
"""Stands in a word for text that only the running shell will know."""

ELSEWHERE = "\x01"
"""Stands for a current folder that only the running shell will know."""

HOME = "/workspace"
DEFAULT_CWD = "/workspace"
DEFAULT_ROOTS = ("/workspace", "/tmp")
"""The folders under which a command may write when nothing else is said."""

_NOTHING = {ord(UNKNOWN): None, ord(ELSEWHERE): None}
_ALWAYS_WRITABLE = frozenset(
    {"/dev/null", "/dev/zero", "/dev/full", "/dev/tty", "/dev/stdin", "/dev/stdout", "/dev/stderr"}
)
_ALWAYS_WRITABLE_UNDER = ("/dev/fd", "/dev/shm", "/dev/pts", "/proc/self/fd", "/var/tmp")
_MAX_PATH = 4096
_GLOB = re.compile(r"[*?\[]")
_ALL_GLOB = re.compile(r"\.?[*?]*\*[*?]*|\.\[!?\^?\.?\]\*|\.\?\*")


@dataclass(frozen=True)
class Places:
    """The folders that a command may write under; their own removal is never ordinary."""

    roots: tuple[str, ...] = DEFAULT_ROOTS

    def outside(self, path: str, cwds: Sequence[str]) -> bool:
        """Tells whether a path certainly lies outside the roots. Unknown ones do not."""
        return all(self._outside(full) for full in _full(path, cwds)) and bool(cwds)

    def precious(self, path: str, cwds: Sequence[str]) -> str:
        """Says why removing the path and all under it would be grave; empty when it is not."""
        for full in _full(path, cwds):
            if why := self._precious(full):
                return why
        return ""

    def _outside(self, full: str) -> bool:
        if full.startswith((UNKNOWN, ELSEWHERE)):
            return False
        known = posixpath.normpath(_GLOB.split(full.split(UNKNOWN)[0])[0] or "/")
        known = "/" + known.lstrip("/")
        if known in _ALWAYS_WRITABLE:
            return False
        return not any(_under(known, root) for root in (*self.roots, *_ALWAYS_WRITABLE_UNDER))

    def _precious(self, full: str) -> str:
        if full.startswith(UNKNOWN):
            return "the path cannot be known in advance"
        names = _names(full)
        whole = bool(names) and _ALL_GLOB.fullmatch(names[-1]) is not None
        if whole:
            names = names[:-1]
        if full.startswith(ELSEWHERE):
            return "" if names else "the folder cannot be known in advance"
        base = "/" + "/".join(names)
        glob = _GLOB.search(base)
        if glob:
            base = posixpath.dirname(base[: glob.start()] + "x")
            if base in self.roots:
                return ""
        if base == "/" or any(_under(root, base) for root in self.roots):
            if whole and base == "/tmp":
                return ""
            return f"it would remove {'everything in ' if whole else ''}{base}"
        if names and names[-1] == ".git":
            return "it would remove the history of a repository"
        return f"{base} is outside the writable folders" if self._outside(base) else ""


def resolve(path: str, cwd: str) -> str:
    """Returns the folder that a path leads to from another, or `ELSEWHERE`."""
    full = _full(path, [cwd])[0]
    if UNKNOWN in full or ELSEWHERE in full or _GLOB.search(full) or len(full) > _MAX_PATH:
        return ELSEWHERE
    return "/" + posixpath.normpath(full).lstrip("/")


def _full(path: str, cwds: Sequence[str]) -> list[str]:
    if path.startswith(("/", UNKNOWN)):
        return [path]
    return [posixpath.join(cwd, path) for cwd in cwds]


def _names(full: str) -> list[str]:
    """Splits a path into names; what is unknown counts as empty, `..` goes one up."""
    names: list[str] = []
    for name in full.translate(_NOTHING).split("/"):
        if name == "..":
            names[-1:] = []
        elif name not in ("", "."):
            names.append(name)
    return names


def _under(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")
