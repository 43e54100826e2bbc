"""The supervisor's selector loop: descriptors, timers and wake-ups from other threads."""

from __future__ import annotations

import os
from _heapq import heappop, heappush
from select import EPOLLERR, EPOLLHUP, EPOLLIN, EPOLLOUT, epoll
from time import monotonic

from .lean import deque

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

READ, WRITE = EPOLLIN, EPOLLOUT
BROKEN = EPOLLERR | EPOLLHUP


class Timer:
    """A call that is due at a moment of the monotonic clock, unless it was cancelled."""

    __slots__ = ("callback", "when")

    def __init__(self, when: float, callback: Callable[[], None]) -> None:
        self.when = when
        self.callback: Callable[[], None] | None = callback

    def __lt__(self, other: Timer) -> bool:
        return self.when < other.when

    def cancel(self) -> None:
        self.callback = None


class Loop:
    """Calls handlers of one thread. A turn handles at most 64 descriptors, so that none starves;
    what was asked by `soon` runs at the turn's end."""

    def __init__(self) -> None:
        self._epoll = epoll()
        self._handlers: dict[int, Callable[[int], None]] = {}
        self._timers: list[Timer] = []
        self._soon: deque[Callable[[], None]] = deque()
        self._posted: deque[Callable[[], None]] = deque()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self.watch(self._wake, READ, self._woken)

    def watch(self, fd: int, events: int, handler: Callable[[int], None]) -> None:
        """Watch a descriptor, or change what it is watched for."""
        if fd in self._handlers:
            self._epoll.modify(fd, events)
        else:
            self._epoll.register(fd, events)
        self._handlers[fd] = handler

    def unwatch(self, fd: int) -> None:
        """Stop watching; nothing happens when it is not watched."""
        if self._handlers.pop(fd, None) is not None:
            self._epoll.unregister(fd)

    def close(self, fd: int) -> None:
        """Stop watching and close. Closing alone would not do: a child that is just being made
        has a copy, and the kernel reports that until the child is its program."""
        self.unwatch(fd)
        os.close(fd)

    def later(self, seconds: float, callback: Callable[[], None]) -> Timer:
        """Call once, `seconds` from now."""
        timer = Timer(monotonic() + seconds, callback)
        heappush(self._timers, timer)
        return timer

    def soon(self, callback: Callable[[], None]) -> None:
        """Call at the end of this turn."""
        self._soon.append(callback)

    def post(self, callback: Callable[[], None]) -> None:
        """Call in the loop's thread; safe from any thread."""
        self._posted.append(callback)
        os.eventfd_write(self._wake, 1)

    def run_once(self) -> None:
        """One turn: wait for something to happen and handle it."""
        for fd, events in self._epoll.poll(self._wait_seconds(), 64):
            handler = self._handlers.get(fd)
            if handler is not None:
                handler(events)
        now = monotonic()
        while self._timers and self._timers[0].when <= now:
            callback = heappop(self._timers).callback
            if callback is not None:
                callback()
        for _ in range(len(self._soon)):
            self._soon.popleft()()

    def _wait_seconds(self) -> float:
        if self._soon:
            return 0.0
        while self._timers and self._timers[0].callback is None:
            heappop(self._timers)
        if not self._timers:
            return -1.0
        return max(0.0, self._timers[0].when - monotonic())

    def _woken(self, _events: int) -> None:
        os.eventfd_read(self._wake)
        for _ in range(len(self._posted)):
            self._posted.popleft()()
