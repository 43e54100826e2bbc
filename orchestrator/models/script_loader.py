"""Owns reading a script file and saying, with line numbers, everything that is wrong in it."""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import yaml

from orchestrator.models.errors import ScriptInvalid
from orchestrator.models.model import Usage
from orchestrator.models.patterns import Pattern
from orchestrator.models.quotes import Find, QuoteProblem, Template, compile_pattern, parse
from orchestrator.models.script import Delay, Script, ScriptedCall, Step, Turn, Value

MAX_SCRIPT_BYTES = 256 * 1024
"""Reading this much keeps the service from other work for less than a second."""
MAX_STEPS = 10_000
MAX_VALUES = 10_000
DEFAULT_CHUNK = 24

_SECONDS = re.compile(r"(\d+(?:\.\d+)?)(ms|s)")
_PACE = {"delay", "chunk", "chunk_delay"}
_STEP = {"answer", "calls", "say", "usage", "repeat"} | _PACE

T = TypeVar("T")
Fields = dict[str, yaml.Node]


def load_scripts(path: Path) -> dict[str, Script]:
    """Read one script, or every `*.yaml` of a folder, by the names that they give themselves.

    Errors: `ScriptInvalid`.
    """
    if path.is_dir():
        files = sorted(path.glob("*.yaml"))
        if not files:
            raise ScriptInvalid(f"{path}: holds no *.yaml script", path=str(path))
    else:
        files = [path]
    scripts: dict[str, Script] = {}
    for file in files:
        script = load_script(file)
        if script.name in scripts:
            raise ScriptInvalid(f"{file}: there is another script {script.name!r}", path=str(file))
        scripts[script.name] = script
    return scripts


def load_script(path: Path) -> Script:
    """Read one script file. Errors: `ScriptInvalid`."""
    try:
        if path.stat().st_size > MAX_SCRIPT_BYTES:
            raise ScriptInvalid(f"{path}: larger than {MAX_SCRIPT_BYTES} bytes", path=str(path))
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ScriptInvalid(f"{path}: cannot be read: {error}", path=str(path)) from error
    return read_script(text, str(path))


def read_script(text: str, source: str) -> Script:
    """Read a script. Errors: `ScriptInvalid`, whose message has `source:line: problem` lines."""
    try:
        node = yaml.compose(text, yaml.CSafeLoader)
    except yaml.MarkedYAMLError as error:
        last = text.rstrip().count("\n") + 1  # what is missing at the end is told behind it
        line = min(error.problem_mark.line + 1, last) if error.problem_mark else 1
        raise ScriptInvalid(f"{source}:{line}: {error.problem}", path=source) from error
    except yaml.YAMLError as error:
        raise ScriptInvalid(f"{source}: {error}", path=source) from error
    reader = _Reader()
    try:
        script = reader.script(node) if node is not None else None
    except RecursionError:
        raise ScriptInvalid(f"{source}: its values are nested too deeply", path=source) from None
    if script is None and not reader.problems:
        reader.problems.append((1, "the file is empty"))
    if reader.problems or script is None:
        lines = [f"{source}:{line}: {problem}" for line, problem in sorted(reader.problems)]
        raise ScriptInvalid("\n".join(lines), path=source)
    return script


@dataclass(frozen=True, slots=True)
class _Pace:
    delay: Delay = Delay()
    chunk: int = DEFAULT_CHUNK
    chunk_delay: float = 0.0


class _Reader:
    """Walks the YAML nodes, which know their lines, and collects problems instead of stopping."""

    def __init__(self) -> None:
        self.problems: list[tuple[int, str]] = []
        self._values = 0

    def script(self, node: yaml.Node) -> Script | None:
        keys = {"script", "description", "defaults", "steps", "turns"}
        fields = self._fields(node, "a script", keys)
        name = self._text(fields, "script")
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
            self._problem(node, "script: must name it, in letters, digits, '.', '_' and '-'")
        if ("steps" in fields) == ("turns" in fields):
            self._problem(node, "a script has either steps or turns")
            return None
        pace = _Pace()
        if "defaults" in fields:
            pace = self._pace(self._fields(fields["defaults"], "defaults", _PACE), pace)
        if "steps" in fields:
            return Script(name, (Turn(None, None, self._steps(fields["steps"], pace)),))
        turns = [self._turn(entry, pace) for entry in self._entries(fields["turns"], "turns")]
        for entry, turn in zip(self._entries(fields["turns"], "turns"), turns[:-1], strict=False):
            if turn.when is None and turn.when_instructions is None:
                self._problem(entry, "only the last turn can do without when: the rest is hidden")
        return Script(name, tuple(turns))

    def _turn(self, node: yaml.Node, pace: _Pace) -> Turn:
        fields = self._fields(node, "a turn", {"when", "when_instructions", "steps"})
        if "steps" not in fields:
            self._problem(node, "a turn has steps")
        return Turn(
            self._pattern(fields, "when"),
            self._pattern(fields, "when_instructions"),
            self._steps(fields["steps"], pace) if "steps" in fields else (),
        )

    def _steps(self, node: yaml.Node, pace: _Pace) -> tuple[Step, ...]:
        entries = self._entries(node, "steps")
        steps: list[Step] = []
        for place, entry in enumerate(entries, 1):
            step, count = self._step(entry, pace, len(steps))
            if step is None:
                continue
            if not step.calls and place < len(entries):
                self._problem(entry, "an answer ends the turn: the steps after it are never played")
            steps += [step] * min(count, MAX_STEPS + 1)
            if len(steps) > MAX_STEPS:
                break
        if len(steps) > MAX_STEPS:
            self._problem(node, f"there are more than {MAX_STEPS} steps")
        elif steps and steps[-1].calls:
            self._problem(entries[-1], "the last step must be an answer, or the turn never ends")
        return tuple(steps)

    def _step(self, node: yaml.Node, pace: _Pace, earlier: int) -> tuple[Step | None, int]:
        fields = self._fields(node, "a step", _STEP)
        if ("answer" in fields) == ("calls" in fields):
            self._problem(node, "a step has either an answer or calls")
            return None, 0
        if "answer" in fields and ("say" in fields or "repeat" in fields):
            self._problem(node, "say and repeat belong to calls, not to an answer")
        spoken = "answer" if "answer" in fields else "say"
        text = self._template(fields[spoken], spoken, earlier) if spoken in fields else Template(())
        if spoken == "answer" and not text.parts:
            self._problem(fields["answer"], "answer: must not be empty")
        calls = [
            self._call(entry, earlier)
            for entry in (self._entries(fields["calls"], "calls") if "calls" in fields else [])
        ]
        pace = self._pace(fields, pace)
        step = Step(
            self._line(node),
            text,
            tuple(calls),
            pace.delay,
            pace.chunk,
            pace.chunk_delay,
            self._usage(fields["usage"]) if "usage" in fields else None,
        )
        return step, self._whole(fields, "repeat", 1, least=1)

    def _call(self, node: yaml.Node, earlier: int) -> ScriptedCall:
        fields = self._fields(node, "a call", {"name", "arguments"})
        name = self._text(fields, "name")
        if not name:
            self._problem(node, "a call has a name")
        if "arguments" not in fields:
            return ScriptedCall(name, {})
        arguments = self._value(fields["arguments"], earlier)
        if not isinstance(arguments, Mapping):
            self._problem(fields["arguments"], "arguments: must be a mapping")
            return ScriptedCall(name, {})
        return ScriptedCall(name, arguments)

    def _value(self, node: yaml.Node, earlier: int) -> Value:
        self._values += 1
        if self._values > MAX_VALUES:  # an alias repeats what it names, so few words can be many
            if self._values == MAX_VALUES + 1:
                self._problem(node, f"all arguments together have more than {MAX_VALUES} values")
            return None
        if isinstance(node, yaml.MappingNode):
            fields = self._fields(node, "arguments", None)
            return {key: self._value(child, earlier) for key, child in fields.items()}
        if isinstance(node, yaml.SequenceNode):
            return tuple(self._value(child, earlier) for child in node.value)
        value = _scalar(node)
        if isinstance(value, str):
            return self._template(node, "", earlier, alone=True)
        if value is None or isinstance(value, bool | int):
            return value
        if isinstance(value, float) and math.isfinite(value):
            return value
        self._problem(node, f"{node.value!r} is read as no JSON value; put it in quotes")
        return None

    def _template(
        self, node: yaml.Node, key: str, earlier: int, *, alone: bool = False
    ) -> Template:
        value = _scalar(node)
        if not isinstance(value, str):
            self._problem(node, f"{key}: must be text")
            return Template(())
        try:
            template = parse(value)
        except QuoteProblem as error:
            self._problem(node, f"{key}: {error}" if key else str(error))
            return Template(())
        for quote in template.quotes:
            if quote.scope in ("last", "all") and earlier == 0:
                self._problem(node, "the first step has nothing before it to quote from")
            if isinstance(quote.scope, int) and quote.scope > earlier:
                self._problem(
                    node, f"step {earlier + 1} cannot quote from step {quote.scope}: not yet run"
                )
            if (
                isinstance(quote, Find)
                and quote.form != "text"
                and not (alone and template.only is quote)
            ):
                self._problem(node, "as: only for an argument that is this quote and nothing else")
        return template

    def _pace(self, fields: Fields, pace: _Pace) -> _Pace:
        return _Pace(
            self._parsed(fields, "delay", _delay, pace.delay),
            self._whole(fields, "chunk", pace.chunk, least=1),
            self._parsed(fields, "chunk_delay", _seconds, pace.chunk_delay),
        )

    def _usage(self, node: yaml.Node) -> Usage:
        keys = {"input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens"}
        fields = self._fields(node, "usage", keys)
        counts = {key: self._whole(fields, key, 0, least=0) for key in keys}
        total = counts["input_tokens"] + counts["output_tokens"]
        return Usage(total_tokens=total, **counts)

    def _pattern(self, fields: Fields, key: str) -> Pattern | None:
        if key not in fields:
            return None
        try:
            return compile_pattern(self._text(fields, key))
        except QuoteProblem as error:
            self._problem(fields[key], f"{key}: {error}")
            return None

    def _text(self, fields: Fields, key: str) -> str:
        if key not in fields:
            return ""
        value = _scalar(fields[key])
        if isinstance(value, str):
            return value
        self._problem(fields[key], f"{key}: must be text")
        return ""

    def _whole(self, fields: Fields, key: str, default: int, *, least: int) -> int:
        if key not in fields:
            return default
        value = _scalar(fields[key])
        if isinstance(value, int) and not isinstance(value, bool) and value >= least:
            return value
        self._problem(fields[key], f"{key}: must be a whole number, {least} or more")
        return default

    def _parsed(
        self, fields: Fields, key: str, parser: Callable[[object], T | None], default: T
    ) -> T:
        if key not in fields:
            return default
        value = parser(_scalar(fields[key]))
        if value is not None:
            return value
        self._problem(fields[key], f"{key}: must be seconds, like 0.5, 250ms or 0.5s..1.5s")
        return default

    def _entries(self, node: yaml.Node, key: str) -> list[yaml.Node]:
        if isinstance(node, yaml.SequenceNode) and node.value:
            return list(node.value)
        self._problem(node, f"{key}: must be a list that is not empty")
        return []

    def _fields(self, node: yaml.Node, what: str, allowed: set[str] | None) -> Fields:
        if not isinstance(node, yaml.MappingNode):
            self._problem(node, f"{what} must be a mapping")
            return {}
        fields: Fields = {}
        for key_node, value in node.value:
            key = _scalar(key_node)
            if not isinstance(key, str):
                self._problem(key_node, f"key {key!r} must be text")
            elif allowed is not None and key not in allowed:
                known = ", ".join(sorted(allowed))
                self._problem(key_node, f"unknown key {key!r} in {what} (allowed: {known})")
            elif key in fields:
                self._problem(key_node, f"key {key!r} is there twice")
            else:
                fields[key] = value
        return fields

    def _problem(self, node: yaml.Node, problem: str) -> None:
        entry = (self._line(node), problem)
        if entry not in self.problems:
            self.problems.append(entry)

    @staticmethod
    def _line(node: yaml.Node) -> int:
        return int(node.start_mark.line) + 1


def _scalar(node: yaml.Node) -> object:
    """A scalar's value; anything else is returned as it is, and so of no scalar type."""
    if not isinstance(node, yaml.ScalarNode):
        return node
    try:
        return yaml.constructor.SafeConstructor().construct_object(node)
    except (yaml.YAMLError, ValueError):
        return node


def _seconds(value: object) -> float | None:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value) if 0 <= value < math.inf else None
    if isinstance(value, str) and (found := _SECONDS.fullmatch(value.strip())):
        return float(found[1]) / (1000 if found[2] == "ms" else 1)
    return None


def _delay(value: object) -> Delay | None:
    least, dots, most = value.partition("..") if isinstance(value, str) else (value, "", "")
    first = _seconds(least)
    last = _seconds(most) if dots else first
    if first is None or last is None or first > last:
        return None
    return Delay(first, last)
