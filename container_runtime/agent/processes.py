"""Finds processes in /proc by their groups, kills trees and counts kernel out-of-memory kills.

Knows no executions: a tree is whatever a `find` function returns.
"""

from __future__ import annotations

import os
from time import monotonic

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from .loop import Loop, Timer

SIGKILL, SIGTERM, SIGCONT = 9, 15, 18
HARD_KILL_SECONDS = 10.0
"""How long KILL is repeated before a tree is given up (processes in uninterruptible sleep)."""


class Tags:
    """Hands out group ids, one per execution, and recognises those that it may hand out.

    They come from the top of what this user namespace maps, where no image has groups."""

    def __init__(self) -> None:
        span = 1_000_000_000
        self._first, self._last = 1_000_000_000, 1_000_000_000 + span
        for line in _read(b"/proc/self/gid_map").splitlines():
            inside, _, count = (int(word) for word in line.split())
            if count < 2**31:
                self._last = inside + count - 2
                self._first = max(inside, self._last - count // 4)
        self._next = self._first

    def new(self, used: set[int]) -> int:
        """A tag that is not in `used`."""
        while True:
            tag = self._next
            self._next = self._first if tag >= self._last else tag + 1
            if tag not in used:
                return tag

    def untagged(self) -> list[int]:
        """The processes that carry no tag at all."""
        first, last = self._first, self._last
        return [
            pid
            for pid, groups in _groups()
            if not any(first <= int(group) <= last for group in groups)
        ]


def tagged(tag: int) -> list[int]:
    """The live processes that carry a tag."""
    wanted = b"%d" % tag
    return [pid for pid, groups in _groups() if wanted in groups]


def _groups() -> list[tuple[int, list[bytes]]]:
    """Every other live process with its supplementary groups."""
    own = os.getpid()
    found = []
    for name in os.listdir(b"/proc"):
        if not name.isdigit() or int(name) == own:
            continue
        status = _read(b"/proc/" + name + b"/status")
        at = status.find(b"\nGroups:")
        if at < 0 or _is_dead(status):
            continue
        found.append((int(name), status[at + 8 : status.index(b"\n", at + 1)].split()))
    return found


def is_stopped(pid: int) -> bool:
    """Whether somebody has stopped a process."""
    return b"\nState:\tT" in _read(b"/proc/%d/status" % pid)


def _is_dead(status: bytes) -> bool:
    """A zombie whose last thread is gone (one with live threads only looks like a zombie)."""
    at = status.find(b"\nState:\t")
    return status[at + 8 : at + 9] in (b"Z", b"X") and b"\nThreads:\t1\n" in status


def _read(path: bytes) -> bytes:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(fd, 65_536)
    except OSError:
        return b""
    finally:
        os.close(fd)


def send(pid: int, number: int) -> None:
    """Signal a process that may be gone."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


class TreeKill:
    """TERM, grace, KILL until nothing is found any more; then calls `done(all_dead)`.

    Each look at /proc is one turn of the loop, so that others are served in between."""

    def __init__(
        self,
        loop: Loop,
        find: Callable[[], list[int]],
        grace: float,
        done: Callable[[bool], None],
    ) -> None:
        self._loop = loop
        self._find = find
        self._done: Callable[[bool], None] | None = done
        self._pause = 0.001
        self._kill_at = monotonic() + grace
        self._give_up_at = self._kill_at + HARD_KILL_SECONDS
        self._timer: Timer | None = None

    def start(self) -> None:
        """Begin; `done` may be called at once."""
        self._look(SIGTERM)

    def look(self) -> None:
        """Something changed: look soon, if that is not planned anyway."""
        if self._done is not None and self._timer is not None and self._pause > 0.002:
            self._timer.cancel()
            self._pause = 0.001
            self._timer = self._loop.later(self._pause, lambda: self._look(0))

    def hurry(self, grace: float) -> None:
        """Shorten the grace that is left; it is never lengthened."""
        self._kill_at = min(self._kill_at, monotonic() + grace)
        self._give_up_at = self._kill_at + HARD_KILL_SECONDS
        if self._done is not None:
            self._look(0)

    def stop(self) -> None:
        """Give up without calling `done`."""
        self._done = None
        if self._timer is not None:
            self._timer.cancel()

    def _look(self, number: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        now = monotonic()
        if now >= self._kill_at:
            number = SIGKILL
        pids = self._find()
        done = self._done
        if done is None:
            return
        if not pids or now >= self._give_up_at:
            self._done = None
            done(not pids)
            return
        if number:
            for pid in pids:
                send(pid, number)
            if number == SIGTERM:
                for pid in pids:
                    send(pid, SIGCONT)
        self._pause = 0.001 if number else min(self._pause * 2, 0.05)
        wait = self._pause if now >= self._kill_at else min(self._pause, self._kill_at - now)
        self._timer = self._loop.later(wait, lambda: self._look(0))


class OutOfMemoryKills:
    """The container's own count of kernel out-of-memory kills, where a cgroup tells it."""

    _PLACES = (b"/sys/fs/cgroup/memory.events", b"/sys/fs/cgroup/memory/memory.oom_control")

    def __init__(self) -> None:
        self._fd = -1
        self._claimed = self._known = 0
        for place in self._PLACES:
            try:
                self._fd = os.open(place, os.O_RDONLY | os.O_CLOEXEC)
                break
            except OSError:
                continue

    def known(self) -> int:
        """Kills when they were last looked at."""
        return self._known

    def look(self) -> None:
        """Count again."""
        self._known = self._count()

    def _count(self) -> int:
        """Kills so far; 0 when nobody tells."""
        if self._fd < 0:
            return 0
        try:
            for line in os.pread(self._fd, 4096, 0).splitlines():
                if line.startswith(b"oom_kill "):
                    return int(line[9:])
        except OSError:
            pass
        return 0

    def claim(self, since: int) -> bool:
        """Whether there was a kill after the count was `since` that nobody claimed yet."""
        now = self._known = self._count()
        if now > max(since, self._claimed):
            self._claimed = max(since, self._claimed) + 1
            return True
        return False
