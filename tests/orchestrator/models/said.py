"""What the tests ask, and how they listen."""

from contextlib import aclosing
from typing import Any

from orchestrator.models.faults import Faults
from orchestrator.models.frames import FrameReader
from orchestrator.models.model import (
    Completed,
    FunctionTool,
    ItemDone,
    Message,
    Model,
    ModelEvent,
    ModelRequest,
    ReasoningSummaryDelta,
    Restarted,
    TextDelta,
)
from orchestrator.models.server_model import WireProtocol
from tests.orchestrator.models.server import events

SHELL = FunctionTool("shell", "Run commands.", {"type": "object"})
QUESTION = ModelRequest("m-1", [Message.of("user", "hi")], tools=[SHELL])


def response(*output: Any, **fields: Any) -> dict[str, Any]:
    return {
        "id": "resp_1",
        "object": "response",
        "status": "completed",
        "output": [*output],
    } | fields


def message(text: str, **fields: Any) -> dict[str, Any]:
    content = [{"type": "output_text", "text": text}]
    return {"type": "message", "role": "assistant", "content": content} | fields


def call(name: str, arguments: str, **fields: Any) -> dict[str, Any]:
    return {"type": "function_call", "name": name, "arguments": arguments} | fields


def chunk(delta: Any = None, finish: str | None = None, **fields: Any) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta or {}, "finish_reason": finish}
    return {"object": "chat.completion.chunk", "choices": [choice]} | fields


def good_stream(protocol: str, text: str = "hello") -> bytes:
    """A small whole answer."""
    if protocol == "chat":
        return events(chunk({"content": text}), chunk(finish="stop"), "[DONE]")
    return events(
        {"type": "response.output_item.added", "output_index": 0, "item": message("", id="m")},
        {"type": "response.output_text.delta", "output_index": 0, "item_id": "m", "delta": text},
        {"type": "response.output_item.done", "output_index": 0, "item": message(text, id="m")},
        {"type": "response.completed", "response": response(message(text, id="m"))},
    )


def begun_stream(protocol: str, text: str = "hel") -> bytes:
    """The beginning of one."""
    if protocol == "chat":
        return events(chunk({"content": text}))
    return events(
        {"type": "response.output_item.added", "output_index": 0, "item": message("", id="m")},
        {"type": "response.output_text.delta", "output_index": 0, "item_id": "m", "delta": text},
    )


class Heard:
    """The events of one stream, sorted."""

    def __init__(self, events: list[ModelEvent]) -> None:
        self.events = events
        self.items: list[Any] = [event.item for event in events if isinstance(event, ItemDone)]
        self.restarts = [event for event in events if isinstance(event, Restarted)]
        completions = [event for event in events if isinstance(event, Completed)]
        assert len(completions) == 1 and events[-1] is completions[0]
        self.completed = completions[0]

    @property
    def text(self) -> str:
        """The deltas, those before a restart forgotten."""
        text = ""
        for event in self.events:
            if isinstance(event, TextDelta):
                text += event.text
            elif isinstance(event, Restarted):
                text = ""
        return text

    @property
    def thoughts(self) -> str:
        return "".join(e.text for e in self.events if isinstance(e, ReasoningSummaryDelta))


def read(protocol: WireProtocol, *chunks: bytes) -> Heard:
    """Read an answer's bytes, cut in these chunks, without a server."""
    answer = protocol.answer(QUESTION, Faults("http://nowhere/v1", QUESTION.model))
    reader = FrameReader()
    frames = [frame for chunk in chunks for frame in reader.feed(chunk)]
    heard = [event for frame in [*frames, *reader.close()] for event in answer.feed(frame)]
    return Heard([*heard, *answer.finish()])


async def ask(model: Model, request: ModelRequest = QUESTION) -> Heard:
    async with aclosing(model.stream(request)) as answer:
        return Heard([event async for event in answer])
