from contextlib import aclosing
from datetime import timedelta

import pytest

from orchestrator.models.errors import ModelRateLimited, ModelRequestRefused, ModelStreamBroken
from orchestrator.models.faults import read_retry_after
from orchestrator.models.model import (
    Completed,
    FinishReason,
    ItemDone,
    Message,
    Restarted,
    TextDelta,
)
from orchestrator.models.retry import Retries, RetryPolicy

DONE = [ItemDone(Message.of("assistant", "whole")), Completed(FinishReason.STOP)]


class Attempts:
    """Attempts that yield these events and raise these errors, one list after the other."""

    def __init__(self, *attempts):
        self.attempts = list(attempts)
        self.closed = 0

    async def __call__(self):
        try:
            for event in self.attempts.pop(0):
                if isinstance(event, Exception):
                    raise event
                yield event
        finally:
            self.closed += 1


async def run(each_attempt, clock, **policy):
    chance = policy.pop("chance", 0.0)
    retries = Retries(RetryPolicy(**policy), clock=clock, sleep=clock.sleep, chance=lambda: chance)
    async with aclosing(retries.run(each_attempt)) as events:
        return [event async for event in events]


async def test_items_of_a_failed_attempt_are_never_seen(clock):
    half = [TextDelta("ha"), ItemDone(Message.of("assistant", "half")), ModelStreamBroken("cut")]
    heard = await run(Attempts(half, [TextDelta("whole"), *DONE]), clock)
    assert heard == [TextDelta("ha"), Restarted(2, "cut"), TextDelta("whole"), *DONE]


async def test_delays_double_up_to_the_longest(clock):
    attempts = Attempts(*[[ModelStreamBroken("cut")]] * 6, DONE)
    await run(attempts, clock, attempts=7, longest_delay=timedelta(seconds=4))
    assert clock.slept == [0.5, 1, 2, 4, 4, 4]


async def test_chance_takes_up_to_a_quarter_off(clock):
    await run(Attempts([ModelStreamBroken("cut")], DONE), clock, chance=1.0)
    assert clock.slept == [0.375]


async def test_a_longer_wait_than_bearable_is_not_waited_for(clock):
    error = ModelRateLimited("slow", retry_after=timedelta(hours=1))
    with pytest.raises(ModelRateLimited) as caught:
        await run(Attempts([error], DONE), clock)
    assert caught.value.retry_after == timedelta(hours=1)
    assert clock.slept == []


async def test_no_attempt_begins_after_the_total(clock):
    error = ModelRateLimited("slow", retry_after=timedelta(seconds=50))
    with pytest.raises(ModelRateLimited, match="gave up after 2 attempts"):
        await run(Attempts([error], [error], DONE), clock, total=timedelta(seconds=60))
    assert len(clock.slept) == 1


async def test_what_cannot_get_better_is_not_tried_again(clock):
    attempts = Attempts([ModelRequestRefused("no")], DONE)
    with pytest.raises(ModelRequestRefused, match="^no$"):
        await run(attempts, clock)
    assert attempts.closed == 1


async def test_closing_closes_the_attempt(clock):
    attempts = Attempts([TextDelta("a"), *DONE])
    async with aclosing(Retries().run(attempts)) as events:
        await anext(events)
    assert attempts.closed == 1


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "3"}, 3),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after-ms": "250", "retry-after": "9"}, 0.25),
        ({"retry-after-ms": "soon", "retry-after": "9"}, 9),
        ({"retry-after": "-5"}, 0),
        (
            {
                "retry-after": "Wed, 21 Oct 2015 07:28:30 GMT",
                "date": "Wed, 21 Oct 2015 07:28:00 GMT",
            },
            30,
        ),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:30 GMT"}, 0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "nan"}, None),
        ({}, None),
    ],
)
def test_retry_after_is_read_in_all_its_forms(headers, seconds):
    expected = None if seconds is None else timedelta(seconds=seconds)
    assert read_retry_after(headers) == expected
