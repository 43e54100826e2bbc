"""Owns what the agent loop says to a model and what it hears back.

Plain values and one protocol; knows no wire format and no transport.
"""

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal, Protocol

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
Summary = Literal["auto", "concise", "detailed"]
Verbosity = Literal["low", "medium", "high"]
Role = Literal["user", "assistant", "developer"]


@dataclass(frozen=True, slots=True)
class Text:
    text: str


@dataclass(frozen=True, slots=True)
class ImageUrl:
    """An image by URL; `data:` URLs carry the bytes themselves."""

    url: str
    detail: Literal["auto", "low", "high"] | None = None


Part = Text | ImageUrl


@dataclass(frozen=True, slots=True)
class Message:
    role: Role
    content: tuple[Part, ...]

    @classmethod
    def of(cls, role: Role, text: str) -> "Message":
        return cls(role, (Text(text),))

    @property
    def text(self) -> str:
        return "".join(part.text for part in self.content if isinstance(part, Text))


@dataclass(frozen=True, slots=True)
class FunctionCall:
    """The model asks for a tool. `arguments` is what it wrote: JSON, if it kept its word.

    `call_id` is never empty and never one that the request's items already use.
    """

    call_id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class FunctionCallOutput:
    call_id: str
    output: str | tuple[Part, ...]

    @property
    def text(self) -> str:
        if isinstance(self.output, str):
            return self.output
        return "".join(part.text for part in self.output if isinstance(part, Text))


@dataclass(frozen=True, slots=True)
class Reasoning:
    """What a model thought: opaque, kept as it came and handed back to the same server."""

    id: str
    encrypted_content: str | None = None
    summary: tuple[str, ...] = ()
    content: tuple[str, ...] = ()


Item = Message | FunctionCall | FunctionCallOutput | Reasoning


@dataclass(frozen=True, slots=True)
class FunctionTool:
    """A tool that the model may call; `parameters` is a JSON schema of type object."""

    name: str
    description: str
    parameters: Mapping[str, object]
    strict: bool = False


@dataclass(frozen=True, slots=True)
class JsonSchema:
    """The answer must be JSON of this schema."""

    schema: Mapping[str, object]
    name: str = "answer"
    strict: bool = True


@dataclass(frozen=True, slots=True)
class JsonObject:
    """The answer must be some JSON object."""


@dataclass(frozen=True, slots=True)
class NamedTool:
    """The model must call this tool."""

    name: str


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """One question to a model. What is None is not sent, so that the server's default holds.

    `reasoning_summary` has no counterpart in Chat Completions and is left out there.
    `turn_step` is how many answers this turn has had already, where the caller knows it. Only
    the script player looks at it: after a compaction the items no longer tell.
    """

    model: str
    items: Sequence[Item]
    instructions: str = ""
    tools: Sequence[FunctionTool] = ()
    tool_choice: Literal["auto", "none", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: Effort | None = None
    reasoning_summary: Summary | None = None
    max_output_tokens: int | None = None
    text_format: JsonSchema | JsonObject | None = None
    verbosity: Verbosity | None = None
    temperature: float | None = None
    top_p: float | None = None
    service_tier: str | None = None
    prompt_cache_key: str | None = None
    turn_step: int | None = None


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one answer, as the server counts them; `cached` and `reasoning` are shares."""

    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0
    total_tokens: int = 0
    cache_write_tokens: int = 0

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            self.input_tokens + other.input_tokens,
            self.cached_tokens + other.cached_tokens,
            self.output_tokens + other.output_tokens,
            self.reasoning_tokens + other.reasoning_tokens,
            self.total_tokens + other.total_tokens,
            self.cache_write_tokens + other.cache_write_tokens,
        )


class FinishReason(StrEnum):
    STOP = "stop"
    TOOL_CALLS = "tool_calls"
    LENGTH = "length"
    CONTENT_FILTER = "content_filter"


@dataclass(frozen=True, slots=True)
class TextDelta:
    """A piece of the message that will be item `index` of this answer."""

    text: str
    index: int = 0


@dataclass(frozen=True, slots=True)
class ReasoningSummaryDelta:
    """A piece of part `part` of the summary of reasoning item `index`."""

    text: str
    index: int = 0
    part: int = 0


@dataclass(frozen=True, slots=True)
class Restarted:
    """The attempt failed and the request is sent again: forget every delta so far.

    Attempt numbers count from 1; `reason` is the failed attempt's error in words.
    """

    attempt: int
    reason: str


@dataclass(frozen=True, slots=True)
class ItemDone:
    """A whole item of the answer; only an attempt that completed yields any."""

    item: Message | FunctionCall | Reasoning
    index: int = 0


@dataclass(frozen=True, slots=True)
class Completed:
    """The last event. `usage` is None where the server did not say."""

    finish_reason: FinishReason
    usage: Usage | None = field(default=None)


ModelEvent = TextDelta | ReasoningSummaryDelta | Restarted | ItemDone | Completed


class Model(Protocol):
    """Something that answers requests."""

    def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        """Answer: deltas while they come, then every `ItemDone` in order, then one `Completed`.

        Iterate it under `contextlib.aclosing`: closing it, like cancelling the task, closes the
        connection to the server at once.

        Errors: a subclass of `ModelError`, after the retries where trying again can help.
        """
        ...
