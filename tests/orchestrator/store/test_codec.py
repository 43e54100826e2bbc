"""Records survive being written and read."""

from datetime import UTC, datetime, timedelta

import pytest

from orchestrator.records import (
    AssistantMessage,
    CommandExecution,
    Ended,
    Exited,
    FunctionCall,
    ImageUrl,
    Item,
    ItemState,
    Phase,
    ReasoningSummary,
    Signalled,
    Text,
    UserMessage,
)
from orchestrator.store import codec

NOW = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)


@pytest.mark.parametrize(
    "content",
    [
        UserMessage((Text("a"), ImageUrl("https://x/y.png"))),
        AssistantMessage("é\0\ud7ff", Phase.FINAL_ANSWER),
        ReasoningSummary(("a", "b"), "rs_1", "opaque", ("c",)),
        FunctionCall("c", "n", "{}", "o"),
        *(
            CommandExecution("c", "ls", timedelta(seconds=1.5), 10, outcome=outcome)
            for outcome in (None, Exited(3), Signalled(9), Ended("timed out"))
        ),
    ],
)
def test_an_item_is_read_as_it_was_written(content):
    item = Item("i", "s", "t", ItemState.COMPLETED, NOW, content, 7)
    assert codec.ITEM.read(codec.ITEM.write(item)) == item


def test_times_keep_their_microseconds():
    assert codec.from_micros(codec.to_micros(NOW)) == NOW
