"""Shows a session's events to a person: commands told apart, their output live, then the answer."""

from collections.abc import Callable
from dataclasses import dataclass, field

import click

from workroom.orchestrator.v1 import events_pb2, turns_pb2

COLOURS = ("cyan", "magenta", "yellow", "green", "blue", "bright_red")
LINE_LIMIT = 4_000
"""Characters of an unfinished line that are kept before it is shown as it is."""
END_LIMIT = 400
"""Characters of a command's end that are shown when its live output did not come to the end."""
SAME = 20
"""Letters and digits that two ends have in common when they are the same."""

Write = Callable[[str], None]


@dataclass
class _Command:
    """A command on the screen: its number, and of each output an unfinished line and the end."""

    number: int
    partial: dict[bool, str] = field(default_factory=lambda: {False: "", True: ""})
    end: dict[bool, str] = field(default_factory=lambda: {False: "", True: ""})

    @property
    def tag(self) -> str:
        return click.style(f"[{self.number}]", fg=COLOURS[(self.number - 1) % len(COLOURS)])


class Display:
    """Writes events as lines. Text of the agent is printed whole, when it is final."""

    def __init__(self, write: Write) -> None:
        self._write = write
        self._commands: dict[str, _Command] = {}

    def show(self, event: events_pb2.Event) -> None:
        """Writes what a person wants to see of the event; of many, nothing."""
        match event.WhichOneof("payload"):
            case "environment_pending":
                image = event.environment_pending.environment.image
                self._note(f"making a container of image {image}")
            case "environment_ready":
                self._note("container ready")
            case "environment_suspended":
                self._note("container sleeps")
            case "environment_failed":
                self._note(f"container failed: {event.environment_failed.environment.error}")
            case "item_added":
                self._item_added(event.item_added.item)
            case "command_output_delta":
                self._output(event.command_output_delta)
            case "item_done":
                self._item_done(event.item_done.item)
            case "output_text_restarted":
                self._note("the model's answer broke off and is asked for again")

    def _note(self, text: str) -> None:
        self._write(click.style(f"· {printable(text)}", dim=True))

    def _item_added(self, item: turns_pb2.Item) -> None:
        if item.WhichOneof("kind") != "command_execution":
            return
        command = _Command(len(self._commands) + 1)
        self._commands[item.id] = command
        first, *rest = printable(item.command_execution.command).splitlines() or [""]
        more = f"  (and {len(rest)} more lines)" if rest else ""
        user = "#" if item.command_execution.as_root else "$"
        self._write(f"{command.tag} {click.style(f'{user} {first}', bold=True)}{more}")

    def _output(self, delta: events_pb2.CommandOutputDelta) -> None:
        command = self._commands.get(delta.item_id)
        if command is None:
            return
        if delta.after_gap:
            self._write(f"{command.tag} {click.style('…', dim=True)}")
        command.end[delta.is_stderr] = (command.end[delta.is_stderr] + delta.delta)[-END_LIMIT:]
        *lines, partial = (command.partial[delta.is_stderr] + delta.delta).split("\n")
        if len(partial) > LINE_LIMIT:
            lines, partial = [*lines, partial], ""
        command.partial[delta.is_stderr] = partial
        for line in lines:
            self._line(command, line, is_stderr=delta.is_stderr)

    def _line(self, command: _Command, line: str, *, is_stderr: bool) -> None:
        text = printable(line)
        self._write(f"{command.tag} {click.style(text, fg='red') if is_stderr else text}")

    def _item_done(self, item: turns_pb2.Item) -> None:
        kind = item.WhichOneof("kind")
        if kind == "message" and item.message.role == turns_pb2.Message.ROLE_ASSISTANT:
            self._message(item.message)
        elif kind == "command_execution":
            self._command_done(item)
        elif kind == "function_call":
            self._note(f"{item.function_call.name}: {item.function_call.output}")

    def _message(self, message: turns_pb2.Message) -> None:
        text = printable(text_of(message))
        if message.phase == turns_pb2.Message.PHASE_FINAL_ANSWER:
            self._write(f"\n{text}")
        else:
            self._write(click.style(text, italic=True))

    def _command_done(self, item: turns_pb2.Item) -> None:
        command = self._commands.get(item.id)
        if command is None:
            return
        for is_stderr, partial in command.partial.items():
            if partial:
                self._line(command, partial, is_stderr=is_stderr)
        command.partial = {False: "", True: ""}
        execution = item.command_execution
        for is_stderr, output in ((False, execution.stdout), (True, execution.stderr)):
            self._unseen_end(command, output, is_stderr=is_stderr)
        seconds = execution.duration.ToTimedelta().total_seconds()
        text = f"{ending(execution)} after {seconds:.1f} s"
        good = execution.WhichOneof("outcome") == "exit_code" and execution.exit_code == 0
        self._write(f"{command.tag} {click.style(text, dim=good, fg=None if good else 'red')}")

    def _unseen_end(self, command: _Command, output: str, *, is_stderr: bool) -> None:
        """Shows the end of an output that was too fast to be shown live."""
        if not output or _gist(output) == _gist(command.end[is_stderr]):
            return
        self._write(f"{command.tag} {click.style('… and at its end', dim=True)}")
        end = output[-END_LIMIT:]
        whole = end if len(output) <= END_LIMIT else end.partition("\n")[2] or end
        for line in whole.splitlines():
            self._line(command, line, is_stderr=is_stderr)


def _gist(text: str) -> str:
    """The last letters and digits, which no way of showing control characters changes."""
    return "".join(c for c in text[-END_LIMIT:] if c.isalnum())[-SAME:]


def ending(execution: turns_pb2.CommandExecution) -> str:
    """How a command ended, in a few words."""
    match execution.WhichOneof("outcome"):
        case "exit_code":
            return f"exit {execution.exit_code}"
        case "signal":
            return f"ended by signal {execution.signal}"
        case "ended":
            return printable(execution.ended)
    return "not over"


def text_of(message: turns_pb2.Message) -> str:
    """A message's text parts, joined."""
    return "".join(part.text for part in message.content)


def printable(text: str) -> str:
    """The text without characters that would steer the terminal; line ends and tabs stay."""
    return "".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in text)


def usage_line(usage: turns_pb2.Usage) -> str:
    """What the models have used, in one line."""
    agent = usage.agent
    parts = [
        f"{usage.model_calls} model calls",
        f"{agent.input_tokens:,} tokens in ({agent.cached_input_tokens:,} cached)",
        f"{agent.output_tokens:,} tokens out",
    ]
    for name, other in (("reviewer", usage.reviewer), ("compaction", usage.compaction)):
        if other.input_tokens or other.output_tokens:
            parts.append(f"{name} {other.input_tokens:,} in, {other.output_tokens:,} out")
    if usage.incomplete:
        parts.append("some calls came without a count")
    return ", ".join(parts)
