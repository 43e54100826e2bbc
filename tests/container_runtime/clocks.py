"""A clock that tests move on."""

from datetime import timedelta

from container_runtime.runtime import now


class ClockAhead:
    """Ahead of the real one by `ahead` seconds."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def now(self):
        return now() + timedelta(seconds=self.ahead)
