"""Owns how a model's answer becomes items: opened while written, recorded once it is whole."""

from collections.abc import Iterator
from dataclasses import replace

from orchestrator import ids
from orchestrator.models import model as m
from orchestrator.records import (
    POSITIONS_PER_ANSWER,
    AssistantMessage,
    CommandExecution,
    EventKind,
    FunctionCall,
    Item,
    ItemContent,
    ItemState,
    Phase,
    ReasoningSummary,
    Stage,
    TextDelta,
    TextRestarted,
    TokenUsage,
    Usage,
)
from orchestrator.store.log import Draft
from orchestrator.tools import shell
from orchestrator.turns.journal import Journal

_POSITIONS_PER_ENTRY = 100


class Answer:
    """One answer of the model, the `step`th of its turn.

    Ids follow from turn, step and place, so that an answer that is asked for again after a crash
    goes on with the items that the first attempt had opened.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._step = journal.progress.step
        self._done: dict[int, m.Message | m.FunctionCall | m.Reasoning] = {}
        self._opened = {
            item.id: item
            for item in journal.own_items()
            if item.state is ItemState.IN_PROGRESS
            and not isinstance(item.content, CommandExecution)
        }
        self._completed: m.Completed | None = None

    def begin(self) -> None:
        """Tell watchers to forget what an attempt before a restart of ours had said."""
        self._forget()

    async def take(self, event: m.ModelEvent) -> None:
        """Take what the model says."""
        match event:
            case m.TextDelta(text, index):
                item_id = await self._open("msg", index, AssistantMessage(""))
                self._journal.say(EventKind.OUTPUT_TEXT_DELTA, TextDelta(item_id, text))
            case m.ReasoningSummaryDelta(text, index):
                item_id = await self._open("rs", index, ReasoningSummary())
                self._journal.say(EventKind.REASONING_SUMMARY_DELTA, TextDelta(item_id, text))
            case m.Restarted():
                self._forget()
            case m.ItemDone(item, index):
                self._done[index] = item
            case m.Completed():
                self._completed = event

    async def record(self) -> m.FinishReason:
        """Write the whole answer down; says why the model ended it."""
        if self._completed is None:
            raise RuntimeError("the model's stream ended without completing")
        items = list(self._items(self._completed.finish_reason))
        kept = {item.id for item in items}
        cut = [
            replace(item, state=ItemState.INCOMPLETE)
            for item in self._opened.values()
            if item.id not in kept
        ]
        open_commands = any(item.state is ItemState.IN_PROGRESS for item in items)
        called = any(isinstance(i.content, CommandExecution | FunctionCall) for i in items)
        stage = Stage.ACTING if open_commands else Stage.THINKING if called else Stage.PUBLISHING
        await self._journal.record(
            added=[item for item in items if item.id not in self._opened],
            changed=[*(item for item in items if item.id in self._opened), *cut],
            drafts=[draft for item in (*items, *cut) for draft in self._drafts(item)],
            progress=replace(self._journal.progress, stage=stage, step=self._step + 1),
            usage=_usage(self._completed.usage),
        )
        return self._completed.finish_reason

    def _drafts(self, item: Item) -> Iterator[Draft]:
        if item.id not in self._opened:
            yield self._journal.draft(
                EventKind.ITEM_ADDED, replace(item, state=ItemState.IN_PROGRESS)
            )
        if item.state is not ItemState.IN_PROGRESS:
            yield self._journal.draft(EventKind.ITEM_DONE, item)

    async def _open(self, prefix: str, index: int, content: ItemContent) -> str:
        item = self._item(prefix, index, 0, content, ItemState.IN_PROGRESS)
        if item.id not in self._opened:
            draft = self._journal.draft(EventKind.ITEM_ADDED, item)
            await self._journal.record(added=[item], drafts=[draft])
            self._opened[item.id] = item
        return item.id

    def _forget(self) -> None:
        for item_id in self._opened:
            self._journal.say(EventKind.OUTPUT_TEXT_RESTARTED, TextRestarted(item_id))

    def _items(self, finish: m.FinishReason) -> Iterator[Item]:
        calls = any(isinstance(item, m.FunctionCall) for item in self._done.values())
        cut_short = finish in (m.FinishReason.LENGTH, m.FinishReason.CONTENT_FILTER)
        state = ItemState.INCOMPLETE if cut_short and not calls else ItemState.COMPLETED
        phase = Phase.COMMENTARY if calls else Phase.FINAL_ANSWER
        for index, item in sorted(self._done.items()):
            match item:
                case m.Message():
                    yield self._item("msg", index, 0, AssistantMessage(item.text, phase), state)
                case m.Reasoning():
                    yield self._item("rs", index, 0, _reasoning(item), state)
                case m.FunctionCall():
                    yield from self._call(index, item)

    def _call(self, index: int, call: m.FunctionCall) -> Iterator[Item]:
        try:
            if call.name != shell.NAME:
                raise shell.BadArguments("name", f"there is no tool but `{shell.NAME}`")
            asked = shell.parse_call(call.arguments)
        except shell.BadArguments as error:
            told = FunctionCall(call.call_id, call.name, call.arguments, error.message)
            yield self._item("fc", index, 0, told, ItemState.FAILED)
            return
        for number, command in enumerate(asked.commands):
            content = CommandExecution(
                call_id=call.call_id,
                command=command.script,
                timeout=command.timeout,
                max_output_chars=command.max_output_chars,
                cwd=command.cwd,
                as_root=command.as_root,
                justification=asked.justification,
                yield_time=asked.yield_time,
                arguments="" if number else call.arguments,
            )
            yield self._item("cmd", index, number, content, ItemState.IN_PROGRESS)

    def _item(
        self, prefix: str, index: int, number: int, content: ItemContent, state: ItemState
    ) -> Item:
        journal = self._journal
        item_id = ids.derived(prefix, journal.turn_id, self._step, index, number)
        known = self._opened.get(item_id)
        position = (self._step + 1) * POSITIONS_PER_ANSWER + index * _POSITIONS_PER_ENTRY + number
        return Item(
            id=item_id,
            session_id=journal.session.id,
            turn_id=journal.turn_id,
            state=state,
            create_time=known.create_time if known else journal.now(),
            content=content,
            position=position,
        )


def _reasoning(item: m.Reasoning) -> ReasoningSummary:
    return ReasoningSummary(item.summary, item.id, item.encrypted_content, item.content)


def _usage(usage: m.Usage | None) -> Usage:
    if usage is None:
        return Usage(model_calls=1, incomplete=True)
    tokens = TokenUsage(
        input_tokens=usage.input_tokens,
        cached_input_tokens=usage.cached_tokens,
        output_tokens=usage.output_tokens,
        reasoning_tokens=usage.reasoning_tokens,
    )
    return Usage(agent=tokens, model_calls=1)
