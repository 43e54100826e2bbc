"""Owns the playing of scripts: answers that somebody wrote down beforehand. No model is asked.

Keeps nothing between requests. Which step comes next is read from the request: the calls that a
script makes carry their step's number in their ids, so any process can go on.
"""

import asyncio
import hashlib
import json
import re
from collections import defaultdict
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence

from orchestrator.models.errors import ModelNotFound, ScriptFailed
from orchestrator.models.model import (
    Completed,
    FinishReason,
    FunctionCall,
    FunctionCallOutput,
    Item,
    ItemDone,
    Message,
    ModelEvent,
    ModelRequest,
    TextDelta,
    Usage,
)
from orchestrator.models.quotes import QuoteProblem, Sources, Template, render, render_value
from orchestrator.models.script import Script, Step, Value

DEFAULT_SCRIPT = "default"
CHARACTERS_PER_TOKEN = 4
"""Usage is an estimate, the same for the same request."""

_CALL_ID = re.compile(r"call_s(\d+)c\d+_[0-9a-f]{12}")


class ScriptedModel:
    """Plays scripts. The request's model name chooses one where there are several."""

    def __init__(
        self,
        scripts: Mapping[str, Script],
        *,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._scripts = scripts
        self._sleep = sleep

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        """Play the next step.

        Errors: `ModelNotFound` for a name that no script has; `ScriptFailed` when no turn fits,
        no step is left, or a quote matches nothing.
        """
        script = self._script(request.model)
        position = _Position.of(request)
        step = self._step(script, request, position)
        place = f"script {script.name!r}, step {position.step + 1} (line {step.line})"
        try:
            text = render(step.text, position.sources)
            calls = [
                FunctionCall(
                    f"call_s{position.step + 1}c{number}_{position.digest}",
                    call.name,
                    json.dumps(_filled(call.arguments, position.sources), ensure_ascii=False),
                )
                for number, call in enumerate(step.calls, 1)
            ]
        except QuoteProblem as problem:
            raise ScriptFailed(
                f"{place}: {problem}",
                script=script.name,
                step=str(position.step + 1),
                line=str(step.line),
            ) from problem
        if delay := step.delay.least + position.chance * (step.delay.most - step.delay.least):
            await self._sleep(delay)
        for start in range(0, len(text), step.chunk):
            if start and step.chunk_delay:
                await self._sleep(step.chunk_delay)
            yield TextDelta(text[start : start + step.chunk])
        if text:
            yield ItemDone(Message.of("assistant", text))
        for index, call in enumerate(calls, 1 if text else 0):
            yield ItemDone(call, index)
        yield Completed(
            FinishReason.TOOL_CALLS if calls else FinishReason.STOP,
            step.usage or _estimate(request, text, calls),
        )

    def _script(self, name: str) -> Script:
        if len(self._scripts) == 1:
            return next(iter(self._scripts.values()))
        script = self._scripts.get(name) or self._scripts.get(DEFAULT_SCRIPT)
        if script is None:
            known = ", ".join(sorted(self._scripts))
            raise ModelNotFound(
                f"there is no script {name!r}; set the model to one of {known}", model=name
            )
        return script

    def _step(self, script: Script, request: ModelRequest, position: "_Position") -> Step:
        prompt = position.sources.prompt
        turn = next((t for t in script.turns if t.is_for(prompt, request.instructions)), None)
        if turn is None:
            raise ScriptFailed(
                f"script {script.name!r} has no turn for the message {prompt[:200]!r}",
                script=script.name,
            )
        if position.step >= len(turn.steps):
            raise ScriptFailed(
                f"script {script.name!r} has {len(turn.steps)} steps for this turn, "
                f"which asks for number {position.step + 1}",
                script=script.name,
                step=str(position.step + 1),
            )
        return turn.steps[position.step]


class _Position:
    """Where in the turn a request stands, and what it can quote from."""

    def __init__(self, step: int, sources: Sources, digest: str) -> None:
        self.step = step
        self.sources = sources
        self.digest = digest
        self.chance = int(digest, 16) / 16 ** len(digest)

    @classmethod
    def of(cls, request: ModelRequest) -> "_Position":
        prompt, after = _last_prompt(request.items)
        outputs: dict[int, list[str]] = defaultdict(list)
        played = 0
        mark = hashlib.blake2b(digest_size=6)
        for item in request.items:
            if isinstance(item, FunctionCall):
                mark.update(item.call_id.encode("utf-8", "replace"))
            elif isinstance(item, Message):
                mark.update(f"{item.role}:{item.text}".encode("utf-8", "replace"))
        for item in after:
            if not isinstance(item, FunctionCall | FunctionCallOutput):
                continue
            if found := _CALL_ID.fullmatch(item.call_id):
                played = max(played, int(found[1]))
                if isinstance(item, FunctionCallOutput):
                    outputs[int(found[1])].append(item.text)
        if request.turn_step is not None:
            played = request.turn_step
        session = [item.text for item in request.items if isinstance(item, FunctionCallOutput)]
        return cls(played, Sources(outputs, played, session, prompt), mark.hexdigest())


def _last_prompt(items: Sequence[Item]) -> tuple[str, Sequence[Item]]:
    """The last run of user messages as one text, and the items after it."""
    end = len(items)
    while end and not _is_prompt(items[end - 1]):
        end -= 1
    start = end
    while start and _is_prompt(items[start - 1]):
        start -= 1
    texts = [item.text for item in items[start:end] if isinstance(item, Message)]
    return "\n".join(texts), items[end:]


def _is_prompt(item: Item) -> bool:
    return isinstance(item, Message) and item.role == "user"


def _filled(value: Value, sources: Sources) -> object:
    match value:
        case Template():
            return render_value(value, sources)
        case tuple():
            return [_filled(entry, sources) for entry in value]
        case Mapping():
            return {key: _filled(entry, sources) for key, entry in value.items()}
    return value


def _estimate(request: ModelRequest, text: str, calls: Sequence[FunctionCall]) -> Usage:
    read = len(request.instructions)
    for item in request.items:
        if isinstance(item, FunctionCall):
            read += len(item.name) + len(item.arguments)
        elif isinstance(item, Message | FunctionCallOutput):
            read += len(item.text)
    written = len(text) + sum(len(call.name) + len(call.arguments) for call in calls)
    inputs, outputs = -(-read // CHARACTERS_PER_TOKEN), -(-written // CHARACTERS_PER_TOKEN)
    return Usage(input_tokens=inputs, output_tokens=outputs, total_tokens=inputs + outputs)
