"""A backlog is bounded, and says what did not reach its watcher."""

import asyncio
from contextlib import aclosing
from datetime import UTC, datetime
from pathlib import Path

from orchestrator.records import (
    Agent,
    CommandOutputDelta,
    Environment,
    Event,
    EventKind,
    Review,
    Session,
    SessionError,
    SessionState,
)
from orchestrator.sessions.feed import BACKLOG_CHARS, BACKLOG_EVENTS, Backlog, Feeds
from orchestrator.store.database import Database
from orchestrator.store.log import Draft
from orchestrator.store.reading import SessionReader
from orchestrator.store.sessions import Change, SessionStore

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


async def test_a_watcher_that_falls_behind_reads_what_is_durable_from_the_store(tmp_path: Path):
    async with Database(tmp_path / "db") as database:
        feeds, reader = Feeds(lambda: NOW), SessionReader(database)
        store = SessionStore(database, feeds.publish, lambda: NOW)
        environment = Environment("env_1", "s", "default")
        state, agent = SessionState.IDLE, Agent()
        await store.create(
            Session("s", "default", state, agent, environment, Review.NONE, {}, NOW, NOW),
            None,
            None,
        )
        events = feeds.watch(reader, "s", 0, until_idle=False, durable_only=False)
        async with aclosing(events):
            seen = [await anext(events), await anext(events)]
            for number in range(3 * BACKLOG_EVENTS):
                delta = CommandOutputDelta("cmd_1", False, str(number))
                feeds.say("s", "", EventKind.COMMAND_OUTPUT_DELTA, delta)
                if number % 100 == 0:
                    draft = Draft(EventKind.SESSION_IN_PROGRESS, SessionError())
                    await store.record(Change("s", "default", (draft,)))
            while seen[-1].sequence_number < 18:
                seen.append(await anext(events))
            again = asyncio.ensure_future(anext(events))
            last = CommandOutputDelta("cmd_1", False, "last")
            while not again.done():
                feeds.say("s", "", EventKind.COMMAND_OUTPUT_DELTA, last)
                await asyncio.sleep(0.01)
            seen.append(again.result())
    durable_numbers = [event.sequence_number for event in seen if event.is_durable]
    assert durable_numbers == list(range(1, 19))
    assert len(seen) < BACKLOG_EVENTS
    assert seen[-1].payload == CommandOutputDelta("cmd_1", False, "last", after_gap=True)
