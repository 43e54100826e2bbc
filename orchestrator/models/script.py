"""Owns what a script is: turns of steps, each a scripted answer. See docs/scripts.md."""

from collections.abc import Mapping
from dataclasses import dataclass

from orchestrator.models.model import Usage
from orchestrator.models.patterns import Pattern
from orchestrator.models.quotes import Template

Value = Template | int | float | bool | None | tuple["Value", ...] | Mapping[str, "Value"]
"""An argument: JSON in which every text may quote."""


@dataclass(frozen=True, slots=True)
class Delay:
    """Seconds before an answer begins: somewhere between the two, always the same for a request."""

    least: float = 0.0
    most: float = 0.0


@dataclass(frozen=True, slots=True)
class ScriptedCall:
    name: str
    arguments: Mapping[str, Value]


@dataclass(frozen=True, slots=True)
class Step:
    """One answer: a text, and the calls after it. Without calls it ends the turn.

    `chunk` is characters per delta, `chunk_delay` seconds between two of them. `usage` is None
    where it is to be estimated. `line` is where the step stands in its file.
    """

    line: int
    text: Template
    calls: tuple[ScriptedCall, ...]
    delay: Delay
    chunk: int
    chunk_delay: float
    usage: Usage | None


@dataclass(frozen=True, slots=True)
class Turn:
    """The steps for the user messages that `when` finds itself in, and so for instructions."""

    when: Pattern | None
    when_instructions: Pattern | None
    steps: tuple[Step, ...]

    def is_for(self, prompt: str, instructions: str) -> bool:
        return (self.when is None or self.when.search(prompt) is not None) and (
            self.when_instructions is None
            or self.when_instructions.search(instructions) is not None
        )


@dataclass(frozen=True, slots=True)
class Script:
    name: str
    turns: tuple[Turn, ...]
