"""Owns the reading of a Chat Completions answer, from servers that keep the protocol more or less.

Call ids and indexes may be missing or repeated, arguments come in fragments, whole or as an
object, usage before, after or never, the end with or without its marks.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from orchestrator.models import wire
from orchestrator.models.faults import Faults
from orchestrator.models.model import (
    Completed,
    FinishReason,
    FunctionCall,
    ItemDone,
    Message,
    ModelEvent,
    ModelRequest,
    Reasoning,
    ReasoningSummaryDelta,
    TextDelta,
    Usage,
)
from orchestrator.models.server_model import CallIds
from orchestrator.models.wire import Done, Event, Frame, Json, Whole

_REASONS = {
    "length": FinishReason.LENGTH,
    "content_filter": FinishReason.CONTENT_FILTER,
    "tool_calls": FinishReason.STOP,
    "function_call": FinishReason.STOP,
}


@dataclass(eq=False)
class _Call:
    index: int | None
    id: str = ""
    name: str = ""
    arguments: str = ""


class ChatAnswer:
    """Puts one answer together out of its chunks."""

    def __init__(self, request: ModelRequest, faults: Faults) -> None:
        self._faults = faults
        self._call_ids = CallIds(request)
        self._text = ""
        self._thought = ""
        self._order: list[str] = []
        self._calls: list[_Call] = []
        self._finish = ""
        self._done_mark = False
        self._usage: Usage | None = None

    @property
    def settled(self) -> bool:
        return bool(self._finish) or (self._done_mark and self._has_content)

    @property
    def _has_content(self) -> bool:
        return bool(self._order or self._calls)

    def feed(self, frame: Frame) -> Iterator[ModelEvent]:
        match frame:
            case Done():
                self._done_mark = True
            case Whole(data):
                if not data.get("error") and not isinstance(data.get("choices"), list):
                    raise self._faults.mismatch("the answer has no choices")
                yield from self._chunk(data)
                self._done_mark = True
            case Event(data):
                yield from self._chunk(data)

    def finish(self) -> Iterator[ModelEvent]:
        if not self.settled:
            raise self._faults.broken("the stream ended without finish_reason or [DONE]")
        reason = _REASONS.get(self._finish, FinishReason.STOP)
        whole = reason is FinishReason.STOP
        for index, kind in enumerate(self._order):
            yield ItemDone(
                Message.of("assistant", self._text)
                if kind == "message"
                else Reasoning("", summary=(self._thought,)),
                index,
            )
        calls = [c for c in self._calls if c.name and (whole or wire.is_whole_object(c.arguments))]
        for index, call in enumerate(calls, len(self._order)):
            call_id = self._call_ids.settle(call.id)
            yield ItemDone(FunctionCall(call_id, call.name, call.arguments or "{}"), index)
        if whole and calls:
            reason = FinishReason.TOOL_CALLS
        yield Completed(reason, self._usage)

    def _chunk(self, data: Json) -> Iterator[ModelEvent]:
        if data.get("error"):
            raise self._faults.from_error(data)
        self._usage = wire.usage(data.get("usage")) or self._usage
        for choice in wire.mappings(data, "choices"):
            if wire.number(choice, "index") not in (None, 0):
                continue
            if error := choice.get("error"):
                raise self._faults.from_error({"error": error})
            delta = wire.mapping(choice, "delta") or wire.mapping(choice, "message")
            yield from self._delta(delta)
            self._finish = wire.text(choice, "finish_reason") or self._finish
            if self._finish == "error":
                raise self._faults.from_error({"message": "the answer finished with an error"})

    def _delta(self, delta: Json) -> Iterator[ModelEvent]:
        thought = wire.text(delta, "reasoning_content") or wire.text(delta, "reasoning")
        if thought:
            self._thought += thought
            yield ReasoningSummaryDelta(thought, self._place("reasoning"))
        text = _content(delta) or wire.text(delta, "refusal")
        if text:
            self._text += text
            yield TextDelta(text, self._place("message"))
        for call in wire.mappings(delta, "tool_calls"):
            self._call(call, wire.mapping(call, "function") or call)
        if function := wire.mapping(delta, "function_call"):
            self._call({"index": 0}, function)

    def _place(self, kind: str) -> int:
        if kind not in self._order:
            self._order.append(kind)
        return self._order.index(kind)

    def _call(self, delta: Json, function: Json) -> None:
        call_id, name = wire.text(delta, "id"), wire.text(function, "name")
        call = self._continued(wire.number(delta, "index"), call_id, name)
        if call is None:
            call = _Call(wire.number(delta, "index"))
            self._calls.append(call)
        call.id = call.id or call_id
        if not call.name or not call.arguments:
            call.name = call.name if call.name == name else call.name + name
        if not (call.arguments.endswith("}") and wire.is_whole_object(call.arguments)):
            # Some servers repeat the whole arguments at the end; they are whole already.
            call.arguments += wire.arguments(function)

    def _continued(self, index: int | None, call_id: str, name: str) -> _Call | None:
        """The call that a fragment goes on with; None when it begins a new one.

        An index says which, unless the fragment has a name and another id: some servers number
        every call 0. Without an index an id says which, and without either a name begins a call.
        """
        same_id = [call for call in self._calls if call_id and call.id == call_id]
        if index is None:
            if same_id:
                return same_id[-1]
            return None if name or call_id or not self._calls else self._calls[-1]
        same_index = [call for call in self._calls if call.index == index]
        if not same_index:
            return None
        call = same_index[-1]
        if name and call_id and call.id and call.id != call_id:
            return same_id[-1] if same_id else None
        if name and not call_id and call.arguments and wire.is_whole_object(call.arguments):
            return None
        return call


def _content(delta: Json) -> str:
    """A delta's text; some servers send a list of parts."""
    return wire.text(delta, "content") or "".join(
        wire.text(part, "text") for part in wire.mappings(delta, "content")
    )
