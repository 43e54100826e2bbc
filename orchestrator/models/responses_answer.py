"""Owns the reading of a Responses answer, from servers that keep the protocol more or less.

Ids, indexes, deltas and usage may each be missing; items may come in pieces, whole, or only in
the last event. Whatever comes, each item of the answer is read once.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

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
)
from orchestrator.models.server_model import CallIds
from orchestrator.models.wire import Done, Event, Frame, Json, Whole

_KINDS = {
    "response.output_text.": "message",
    "response.refusal.": "message",
    "response.function_call_arguments.": "function_call",
    "response.reasoning_summary_text.": "reasoning",
    "response.reasoning_text.": "reasoning",
}
_TERMINAL = {"response.completed", "response.incomplete", "response.failed", "response.done"}


@dataclass(eq=False)
class _Slot:
    """One item of the answer while it grows; `index` is its place among those seen."""

    index: int
    kind: str
    id: str = ""
    output_index: int | None = None
    name: str = ""
    call_id: str = ""
    text: str = ""
    thought: str = ""
    arguments: str = ""
    summary: dict[int, str] = field(default_factory=dict)
    encrypted: str | None = None
    done: bool = False
    cut_short: bool = False

    def take(self, item: Json) -> None:
        """Take over a whole item; what it leaves out stays as the deltas had it."""
        self.id = wire.text(item, "id") or self.id
        self.name = wire.text(item, "name") or self.name
        self.call_id = wire.text(item, "call_id") or self.call_id
        self.arguments = wire.arguments(item) or self.arguments
        self.text = _message_text(item) or self.text
        self.encrypted = wire.text(item, "encrypted_content") or self.encrypted
        self.thought = "".join(wire.text(p, "text") for p in _parts(item)) or self.thought
        for number, part in enumerate(wire.mappings(item, "summary")):
            self.summary[number] = wire.text(part, "text") or self.summary.get(number, "")
        self.cut_short = wire.text(item, "status") == "incomplete"

    def signature(self) -> tuple[str, str, str]:
        if self.kind == "message":
            return (self.kind, self.text, "")
        return (self.kind, self.name, self.arguments)


class ResponsesAnswer:
    """Puts one answer together out of its events."""

    def __init__(self, request: ModelRequest, faults: Faults) -> None:
        self._faults = faults
        self._call_ids = CallIds(request)
        self._slots: list[_Slot] = []
        self._response: Json | None = None
        self._done_mark = False

    @property
    def settled(self) -> bool:
        return self._response is not None

    def feed(self, frame: Frame) -> Iterator[ModelEvent]:
        if self.settled:
            return
        match frame:
            case Done():
                self._done_mark = True
            case Whole(data):
                if not data.get("error") and not isinstance(data.get("output"), list):
                    raise self._faults.mismatch("the answer has no output")
                yield from self._end(data)
            case Event(data, name):
                yield from self._event(wire.text(data, "type") or name, data)

    def finish(self) -> Iterator[ModelEvent]:
        if self._response is None:
            # A server that forgets the last event but says [DONE] has said all it had to say.
            if not (self._done_mark and self._slots and all(slot.done for slot in self._slots)):
                raise self._faults.broken("the stream ended without response.completed")
            self._response = {}
        reason = _finish_reason(self._response)
        whole = reason is FinishReason.STOP
        called = False
        for slot in self._slots:
            item = self._item(slot, whole)
            if item is not None:
                called = called or isinstance(item, FunctionCall)
                yield ItemDone(item, slot.index)
        if whole and called:
            reason = FinishReason.TOOL_CALLS
        yield Completed(reason, wire.usage(self._response.get("usage")))

    def _event(self, kind: str, data: Json) -> Iterator[ModelEvent]:
        if kind == "error" or (not kind and data.get("error")):
            raise self._faults.from_error(data)
        if kind in _TERMINAL:
            response = wire.mapping(data, "response") or data
            status = kind.removeprefix("response.")
            yield from self._end({"status": status.replace("done", "completed"), **response})
        elif kind == "response.output_item.added":
            item = wire.mapping(data, "item")
            known = self._by_id(wire.text(item, "id"))
            slot = known or self._open(wire.text(item, "type"), data, item)
            slot.name = wire.text(item, "name") or slot.name
            slot.call_id = wire.text(item, "call_id") or slot.call_id
        elif kind == "response.output_item.done":
            item = wire.mapping(data, "item")
            slot = self._find(wire.text(item, "type"), data, wire.text(item, "id"))
            yield from self._close(slot, item)
        else:
            yield from self._piece(kind, data)

    def _piece(self, event: str, data: Json) -> Iterator[ModelEvent]:
        stem, _, ending = event.rpartition(".")
        if (kind := _KINDS.get(stem + ".")) is None or ending not in ("delta", "done"):
            return
        slot = self._find(kind, data, wire.text(data, "item_id"))
        if kind == "function_call":
            slot.name = wire.text(data, "name") or slot.name
            if ending == "delta":
                slot.arguments += wire.text(data, "delta")
            else:
                slot.arguments = wire.arguments(data) or slot.arguments
        elif ending == "delta":
            yield from self._text_piece(stem, slot, data)

    def _text_piece(self, stem: str, slot: _Slot, data: Json) -> Iterator[ModelEvent]:
        delta = wire.text(data, "delta")
        if not delta:
            return
        if slot.kind == "message":
            slot.text += delta
            yield TextDelta(delta, slot.index)
        elif stem == "response.reasoning_text":
            slot.thought += delta
        else:
            part = wire.number(data, "summary_index") or 0
            slot.summary[part] = slot.summary.get(part, "") + delta
            yield ReasoningSummaryDelta(delta, slot.index, part)

    def _close(self, slot: _Slot, item: Json) -> Iterator[ModelEvent]:
        """Take the whole item; what of its text was never streamed is streamed now."""
        shown, told = slot.text, dict(slot.summary)
        slot.take(item)
        slot.done = True
        if slot.kind == "message" and slot.text.startswith(shown) and slot.text != shown:
            yield TextDelta(slot.text[len(shown) :], slot.index)
        for part, summary in slot.summary.items():
            if part not in told and summary:
                yield ReasoningSummaryDelta(summary, slot.index, part)

    def _end(self, response: Json) -> Iterator[ModelEvent]:
        if error := response.get("error"):
            raise self._faults.from_error({"error": error})
        status = wire.text(response, "status")
        if status in ("failed", "cancelled"):
            raise self._faults.from_error({"message": f"the response is {status}"})
        yield from self._late_items(response)
        self._response = response

    def _late_items(self, response: Json) -> Iterator[ModelEvent]:
        """Read the items that the last event has and no event before it had."""
        unmatched = [slot for slot in self._slots if slot.done]
        for index, item in enumerate(wire.mappings(response, "output")):
            late = _Slot(index, wire.text(item, "type"))
            late.take(item)
            if (match := _match(late, unmatched)) is not None:
                unmatched.remove(match)
                continue
            slot = self._find(late.kind, {"output_index": index}, late.id)
            yield from self._close(slot, item)

    def _by_id(self, item_id: str) -> _Slot | None:
        return next((slot for slot in self._slots if item_id and slot.id == item_id), None)

    def _find(self, kind: str, data: Json, item_id: str) -> _Slot:
        """The slot meant: by id, else by output index, else the last one open; else a new one."""
        if (slot := self._by_id(item_id)) is not None:
            return slot
        index = wire.number(data, "output_index")
        for slot in reversed(self._slots):
            if slot.kind != kind or slot.done:
                continue
            if index is None or slot.output_index is None or slot.output_index == index:
                return slot
        return self._open(kind, data, {"id": item_id})

    def _open(self, kind: str, data: Json, item: Json) -> _Slot:
        slot = _Slot(
            len(self._slots), kind, wire.text(item, "id"), wire.number(data, "output_index")
        )
        self._slots.append(slot)
        return slot

    def _item(self, slot: _Slot, whole: bool) -> Message | FunctionCall | Reasoning | None:
        match slot.kind:
            case "message":
                return Message.of("assistant", slot.text) if slot.text else None
            case "function_call":
                cut = slot.cut_short or (not whole and not wire.is_whole_object(slot.arguments))
                if cut or not slot.name:
                    return None
                call_id = self._call_ids.settle(slot.call_id or slot.id)
                return FunctionCall(call_id, slot.name, slot.arguments or "{}")
            case "reasoning":
                summary = tuple(text for _, text in sorted(slot.summary.items()) if text)
                content = (slot.thought,) if slot.thought else ()
                return Reasoning(slot.id, slot.encrypted, summary, content)
            case _:
                return None


def _match(late: _Slot, slots: list[_Slot]) -> _Slot | None:
    """Which of these is the same item: by id, else by place, else by what it says."""
    alike = [slot for slot in slots if slot.kind == late.kind]
    by_id = (slot for slot in alike if slot.id and slot.id == late.id)
    by_place = (slot for slot in alike if slot.output_index == late.index)
    by_words = (slot for slot in alike if slot.signature() == late.signature())
    return next(by_id, None) or next(by_place, None) or next(by_words, None)


def _parts(item: Json) -> Iterator[Json]:
    return (p for p in wire.mappings(item, "content") if wire.text(p, "type") == "reasoning_text")


def _message_text(item: Json) -> str:
    """A message's text, a refusal included; some servers send a bare string."""
    if wire.text(item, "type") not in ("", "message"):
        return ""
    return wire.text(item, "content") or "".join(
        wire.text(part, "text") or wire.text(part, "refusal")
        for part in wire.mappings(item, "content")
        if wire.text(part, "type") != "reasoning_text"
    )


def _finish_reason(response: Json) -> FinishReason:
    details = wire.mapping(response, "incomplete_details")
    if wire.text(response, "status") != "incomplete" and not details:
        return FinishReason.STOP
    if wire.text(details, "reason") == "content_filter":
        return FinishReason.CONTENT_FILTER
    return FinishReason.LENGTH
