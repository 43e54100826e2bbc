"""Owns how much a container may do at a time, and for how long it is waited for."""

from dataclasses import dataclass
from datetime import timedelta


@dataclass(frozen=True)
class Limits:
    """Bounds of one container. `docs/limits.md` says what happens at each."""

    connections: int = 512
    """Open at a time; more wait in the listener's queue."""
    connections_per_second: float = 200
    """Sustained; more wait. Twice as many at once after a pause."""
    queries_per_second: float = 200
    """DNS queries, sustained; more are dropped, and asked again by the resolver inside."""
    hello: timedelta = timedelta(seconds=5)
    """For a client to say whom it wants, where a client speaks first."""
    first_byte: timedelta = timedelta(milliseconds=500)
    """After which a protocol is taken for one in which the server speaks first."""
    resolve: timedelta = timedelta(seconds=10)
    connect: timedelta = timedelta(seconds=10)
    """For all addresses of a host together."""
    idle: timedelta = timedelta(hours=1)
    """Without a byte in either direction."""
    absolute: timedelta = timedelta(hours=24)
    head_bytes: int = 64 * 1024
    """Of an HTTP request's or response's head."""
    head_fields: int = 200
    requests: int = 10_000
    """On one client connection."""


class Bucket:
    """Lets through `rate` a second, and twice that at once after a pause."""

    def __init__(self, rate: float, now: float) -> None:
        self._rate = rate
        self._level = 2 * rate
        self._then = now

    def wait_seconds(self, now: float) -> float:
        """Takes one; how long it has to be waited for."""
        self._refill(now)
        self._level -= 1
        return max(0.0, -self._level / self._rate)

    def take(self, now: float) -> bool:
        """Takes one, if there is one now."""
        self._refill(now)
        if self._level < 1:
            return False
        self._level -= 1
        return True

    def _refill(self, now: float) -> None:
        self._level = min(2 * self._rate, self._level + (now - self._then) * self._rate)
        self._then = now
