"""Owns when a failed model call is sent again, and that nothing of a failed attempt stays."""

import asyncio
import random
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from datetime import timedelta

from orchestrator.models.errors import ModelError
from orchestrator.models.model import Completed, ItemDone, ModelEvent, Restarted

Attempt = Callable[[], AsyncGenerator[ModelEvent, None]]


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How long to go on. The delay before attempt n + 1 is `first_delay` times 2 to the n - 1.

    A quarter of each delay is chance, so that many sessions do not come back at once. A server
    that asks for more than `longest_retry_after` is not waited for, and no attempt begins after
    `total`.
    """

    attempts: int = 5
    first_delay: timedelta = timedelta(milliseconds=500)
    longest_delay: timedelta = timedelta(seconds=8)
    longest_retry_after: timedelta = timedelta(seconds=120)
    total: timedelta = timedelta(minutes=10)


class Retries:
    """Runs attempts until one completes."""

    def __init__(
        self,
        policy: RetryPolicy = RetryPolicy(),
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._policy = policy
        self._clock = clock
        self._sleep = sleep
        self._chance = chance

    async def run(self, attempt: Attempt) -> AsyncGenerator[ModelEvent, None]:
        """Yield deltas at once, items and completion only from the attempt that completed.

        Errors: the last attempt's `ModelError`, saying how many attempts there were.
        """
        started = self._clock()
        number = 1
        while True:
            kept: list[ModelEvent] = []
            try:
                async with aclosing(attempt()) as events:
                    async for event in events:
                        if isinstance(event, ItemDone | Completed):
                            kept.append(event)
                        else:
                            yield event
                break
            except ModelError as error:
                delay = self._delay(error, number, self._clock() - started)
                if delay is None:
                    raise error.after(number) from error
                reason = error.message
            number += 1
            yield Restarted(number, reason)
            await self._sleep(delay)
        for event in kept:
            yield event

    def _delay(self, error: ModelError, failed: int, elapsed: float) -> float | None:
        """Seconds to wait after attempt `failed`; None when there is no use in another."""
        policy = self._policy
        if not error.retryable or failed >= policy.attempts:
            return None
        longest = policy.longest_delay.total_seconds()
        delay: float = min(policy.first_delay.total_seconds() * 2.0 ** (failed - 1), longest)
        delay *= 1 - 0.25 * self._chance()
        if error.retry_after is not None:
            if error.retry_after > policy.longest_retry_after:
                return None
            # Never earlier than asked, and not all at the same moment either.
            delay = error.retry_after.total_seconds() + 0.1 * delay
        if elapsed + delay > policy.total.total_seconds():
            return None
        return delay
