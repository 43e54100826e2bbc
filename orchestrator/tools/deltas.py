"""Owns how a command's output becomes live deltas: few, bounded, and honest about what is left out.

Knows nobody who watches.
"""

import asyncio
from collections.abc import Callable
from datetime import timedelta

from orchestrator.tools.output import readable

INTERVAL = timedelta(milliseconds=50)
"""Between two deltas of one stream."""
LIMIT_CHARS = 16 * 1024
"""Characters of one delta; what a command writes beyond that in an interval is left out."""


class Thinner:
    """Turns pieces of one stream into deltas for `emit(text, after_gap)`.

    The first piece goes out at once; what follows within the interval is gathered. `emit` runs on
    the event loop, out of `feed` or out of a timer, and never after `close`.
    """

    def __init__(self, emit: Callable[[str, bool], None]) -> None:
        self._emit = emit
        self._loop = asyncio.get_running_loop()
        self._pending: list[str] = []
        self._room = LIMIT_CHARS
        self._lost_before = False
        self._lost_since = False
        self._timer: asyncio.TimerHandle | None = None

    def feed(self, text: str) -> None:
        """More output."""
        taken = "" if self._lost_since else text[: self._room]
        if taken:
            self._pending.append(taken)
            self._room -= len(taken)
        if len(taken) < len(text):
            self._lost_since = True
        if self._timer is None and self._pending:
            self._send()

    def gap(self) -> None:
        """Output is missing here."""
        if self._pending:
            self._lost_since = True
        else:
            self._lost_before = True

    def close(self) -> None:
        """Nothing follows; what was gathered goes out."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._pending:
            self._deliver()

    def _send(self) -> None:
        self._timer = None
        if self._pending:
            self._timer = self._loop.call_later(INTERVAL.total_seconds(), self._send)
            self._deliver()

    def _deliver(self) -> None:
        text, after_gap = readable("".join(self._pending)), self._lost_before
        self._pending.clear()
        self._room = LIMIT_CHARS
        self._lost_before, self._lost_since = self._lost_since, False
        self._emit(text, after_gap)
