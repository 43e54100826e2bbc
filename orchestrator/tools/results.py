"""Owns how the end of commands is put into words, for the model and for whoever reads the items.

Knows neither the runtime's messages nor a model's protocol.
"""

import signal
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

from orchestrator.records import Ended, Exited, Outcome, Signalled

HELD = (
    "(a process that the command left in the background goes on and holds its output: what it "
    "writes from now on cannot be seen; start such a process with its output sent to a file)"
)


@dataclass(frozen=True, slots=True)
class CommandResult:
    """What became of one command, or what is known of it when the call yields.

    `outcome` is None exactly when `still_running`. Both texts are bounded and readable.
    `stdout_bytes` and `stderr_bytes` are the offsets up to which output was read. `output_held`
    says that a process which the command left behind may write more, unseen.
    """

    item_id: str
    execution_id: str
    outcome: Outcome | None
    stdout: str = ""
    stderr: str = ""
    duration: timedelta | None = None
    still_running: bool = False
    stdout_bytes: int = 0
    stderr_bytes: int = 0
    output_held: bool = False

    @property
    def succeeded(self) -> bool:
        return self.outcome == Exited(0)


class Reported(Protocol):
    """What is told of a command: a `CommandResult`, or the item in which it was recorded."""

    @property
    def outcome(self) -> Outcome | None: ...
    @property
    def still_running(self) -> bool: ...
    @property
    def stdout(self) -> str: ...
    @property
    def stderr(self) -> str: ...
    @property
    def duration(self) -> timedelta | None: ...
    @property
    def output_held(self) -> bool: ...


def render_results(results: Sequence[Reported]) -> str:
    """What the model gets for one call of `shell`: each command's end and output, in order."""
    if len(results) == 1:
        return _render(results[0], "")
    return "\n\n".join(
        _render(result, f"Command {number} of {len(results)}: ")
        for number, result in enumerate(results, 1)
    )


def describe(result: Reported) -> str:
    """How a command ended, in a few words without an end mark."""
    match result.outcome:
        case Exited(code):
            words = f"exit code {code}"
        case Signalled(number):
            words = f"ended by signal {number}{_signal_name(number)}"
        case Ended(text):
            words = text
        case None:
            words = "still running" if result.still_running else "cut short, no result"
    if result.duration is not None:
        words += f" ({result.duration.total_seconds():.2f} s)"
    return words


def _render(result: Reported, prefix: str) -> str:
    parts = [f"{prefix}{describe(result)}"]
    for name, text in (("stdout", result.stdout), ("stderr", result.stderr)):
        if text:
            parts.append(f"{name} ({len(text)} characters):\n{text.removesuffix(chr(10))}")
    if len(parts) == 1 and isinstance(result.outcome, Exited | Signalled):
        parts.append("(no output)")
    if result.output_held:
        parts.append(HELD)
    return "\n".join(parts)


def _signal_name(number: int) -> str:
    try:
        return f" ({signal.Signals(number).name})"
    except ValueError:
        return ""
