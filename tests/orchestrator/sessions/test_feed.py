"""A backlog is bounded, and says what did not reach its watcher."""

from datetime import UTC, datetime

from orchestrator.records import CommandOutputDelta, Event, EventKind, SessionError
from orchestrator.sessions.feed import BACKLOG_CHARS, BACKLOG_EVENTS, Backlog

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def durable(number: int) -> Event:
    return Event("s", EventKind.SESSION_IDLE, SessionError(), NOW, sequence_number=number)


def live(text: str = "x", item_id: str = "cmd_1") -> Event:
    delta = CommandOutputDelta(item_id, False, text)
    return Event("s", EventKind.COMMAND_OUTPUT_DELTA, delta, NOW, after_sequence_number=1)


async def test_events_are_taken_in_order():
    backlog = Backlog(set())
    events = [durable(1), live("a"), live("b"), durable(2)]
    for event in events:
        backlog.put(event)
    assert [await backlog.take() for _ in events] == events


async def test_too_many_events_empty_the_backlog():
    backlog = Backlog(set())
    for number in range(BACKLOG_EVENTS + 5):
        backlog.put(durable(number + 1))
    assert backlog.overflowed
    assert await backlog.take() is None
    backlog.begin_again()
    backlog.put(durable(999))
    assert await backlog.take() == durable(999)


async def test_too_much_text_empties_the_backlog_and_the_next_piece_says_so():
    backlog = Backlog(set())
    backlog.put(live("x" * BACKLOG_CHARS))
    backlog.put(live("y", "cmd_2"))
    assert backlog.overflowed
    backlog.begin_again()
    for item_id, gap in (("cmd_1", True), ("cmd_1", False), ("cmd_2", True), ("cmd_3", False)):
        backlog.put(live("z", item_id))
        taken = await backlog.take()
        assert taken is not None
        payload = backlog.marked(taken).payload
        assert isinstance(payload, CommandOutputDelta)
        assert payload.after_gap is gap


async def test_a_closed_backlog_gives_what_it_has_and_then_nothing():
    backlog = Backlog(set())
    backlog.put(durable(1))
    backlog.close()
    assert await backlog.take() == durable(1)
    assert await backlog.take() is None
