"""Owns the `shell` tool: what the model may ask for, in which limits, and how a call is read.

Knows neither how commands are run nor how they are judged.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from posixpath import join, normpath
from typing import TypeVar

from workroom.errors import InvalidField

T = TypeVar("T")

NAME = "shell"
WORKSPACE = "/workspace"

MAX_COMMANDS = 16
"""Commands in one call."""
MAX_SCRIPT_BYTES = 128 * 1024
MAX_JUSTIFICATION_CHARS = 4_096
MAX_CWD_BYTES = 4_095

DEFAULT_TIMEOUT = timedelta(seconds=120)
MAX_TIMEOUT = timedelta(hours=1)
DEFAULT_OUTPUT_CHARS = 10_000
MAX_OUTPUT_CHARS = 100_000

DESCRIPTION = """\
Runs shell commands in the container. All commands of one call run at the same time, each as a \
fresh process that begins in /workspace: no `cd`, `export` or shell variable survives a command \
or is seen by another. Put what depends on each other into one command (`a && b`), and what does \
not into several commands of one call. The result has the exit code, standard output and standard \
error of each command; long output keeps its beginning and end and says how much was left out."""

PARAMETERS: Mapping[str, object] = {
    "type": "object",
    "additionalProperties": False,
    "required": ["commands"],
    "properties": {
        "commands": {
            "type": "array",
            "minItems": 1,
            "maxItems": MAX_COMMANDS,
            "description": "The commands; they run at the same time.",
            "items": {
                "type": "object",
                "additionalProperties": False,
                "required": ["command"],
                "properties": {
                    "command": {
                        "type": "string",
                        "description": "A script for bash (sh where the image has no bash).",
                    },
                    "cwd": {
                        "type": "string",
                        "description": "Where it runs; relative to /workspace, the default.",
                    },
                    "timeout_ms": {
                        "type": "integer",
                        "minimum": 1,
                        "maximum": 3_600_000,
                        "description": "When it is ended with all its children; default 120000.",
                    },
                    "max_output_chars": {
                        "type": "integer",
                        "minimum": 1,
                        "maximum": MAX_OUTPUT_CHARS,
                        "description": (
                            "Characters of its output that come back; default 10000. A quarter "
                            "of them is kept for standard error."
                        ),
                    },
                    "as_root": {
                        "type": "boolean",
                        "description": "Run as root. Has to be allowed; say why in justification.",
                    },
                },
            },
        },
        "yield_time_ms": {
            "type": "integer",
            "minimum": 0,
            "maximum": 3_600_000,
            "description": (
                "Answer after this time even if commands still run; they go on until their "
                "timeout. Default: wait for their end. Let a command that should outlive the "
                "call write to a file, to read it later."
            ),
        },
        "justification": {
            "type": "string",
            "description": "Why, where a command needs approval.",
        },
    },
}
"""The JSON schema of the arguments."""


class BadArguments(InvalidField):
    """The model's call cannot be read; the message is fit to be its result."""

    reason = "BAD_TOOL_ARGUMENTS"


@dataclass(frozen=True, slots=True)
class ShellCommand:
    """A command as it was asked for, defaults filled in. `cwd` is absolute."""

    script: str
    cwd: str = WORKSPACE
    timeout: timedelta = DEFAULT_TIMEOUT
    max_output_chars: int = DEFAULT_OUTPUT_CHARS
    as_root: bool = False


@dataclass(frozen=True, slots=True)
class ShellCall:
    """One call of the tool. `yield_time` None waits for the end of every command."""

    commands: tuple[ShellCommand, ...]
    yield_time: timedelta | None = None
    justification: str = ""


def parse_call(arguments: str) -> ShellCall:
    """Reads the arguments of a call. Null counts as absent; anything unknown is refused.

    Errors: `BadArguments`, naming the field and what is allowed.
    """
    fields = _Fields(_decode(arguments), "", ("commands", "yield_time_ms", "justification"))
    commands = fields.take("commands", list, "a list of commands")
    if commands is None or not 1 <= len(commands) <= MAX_COMMANDS:
        raise BadArguments("commands", f"must have 1 to {MAX_COMMANDS} entries")
    justification = fields.text("justification", MAX_JUSTIFICATION_CHARS * 4) or ""
    if len(justification) > MAX_JUSTIFICATION_CHARS:
        raise BadArguments("justification", f"longer than {MAX_JUSTIFICATION_CHARS} characters")
    yield_ms = fields.number("yield_time_ms", 0, _ms(MAX_TIMEOUT))
    return ShellCall(
        commands=tuple(_command(entry, f"commands[{n}]") for n, entry in enumerate(commands)),
        yield_time=None if yield_ms is None else timedelta(milliseconds=yield_ms),
        justification=justification,
    )


def _command(entry: object, path: str) -> ShellCommand:
    fields = _Fields(entry, path, ("command", "cwd", "timeout_ms", "max_output_chars", "as_root"))
    script = fields.text("command", MAX_SCRIPT_BYTES)
    if script is None or not script.strip():
        raise BadArguments(fields.name("command"), "must not be empty")
    cwd = fields.text("cwd", MAX_CWD_BYTES) or ""
    timeout_ms = fields.number("timeout_ms", 1, _ms(MAX_TIMEOUT))
    chars = fields.number("max_output_chars", 1, MAX_OUTPUT_CHARS)
    return ShellCommand(
        script=script,
        cwd=normpath(join(WORKSPACE, cwd)),
        timeout=DEFAULT_TIMEOUT if timeout_ms is None else timedelta(milliseconds=timeout_ms),
        max_output_chars=DEFAULT_OUTPUT_CHARS if chars is None else chars,
        as_root=fields.take("as_root", bool, "true or false") or False,
    )


class _Fields:
    """The fields of one JSON object, taken by name and checked."""

    def __init__(self, value: object, path: str, allowed: tuple[str, ...]) -> None:
        self._path = path
        if not isinstance(value, dict):
            raise BadArguments(path or "arguments", "must be a JSON object")
        for key in value:
            if key not in allowed:
                raise BadArguments(self.name(key), f"unknown; allowed are {', '.join(allowed)}")
        self._value = value

    def name(self, key: str) -> str:
        key = key if len(key) <= 64 else key[:63] + "…"
        return f"{self._path}.{key}" if self._path else key

    def take(self, key: str, kind: type[T], wanted: str) -> T | None:
        value = self._value.get(key)
        if value is not None and type(value) is not kind:
            raise BadArguments(self.name(key), f"must be {wanted}")
        return value

    def number(self, key: str, least: int, most: int) -> int | None:
        value = self.take(key, int, f"a whole number from {least} to {most}")
        if value is not None and not least <= value <= most:
            raise BadArguments(self.name(key), f"must be from {least} to {most}, is {value}")
        return value

    def text(self, key: str, max_bytes: int) -> str | None:
        value = self.take(key, str, "text")
        if value is None:
            return None
        if "\0" in value:
            raise BadArguments(self.name(key), "must not contain a NUL character")
        try:
            size = len(value.encode())
        except UnicodeEncodeError:
            raise BadArguments(self.name(key), "has half a surrogate pair in it") from None
        if size > max_bytes:
            raise BadArguments(
                self.name(key),
                f"longer than {max_bytes} bytes; write a long script to a file in several steps",
            )
        return value


def _decode(arguments: str) -> object:
    try:
        return json.loads(
            arguments or "{}", object_pairs_hook=_unique, parse_constant=_refuse_constant
        )
    except BadArguments:
        raise
    except RecursionError:
        raise BadArguments("arguments", "nested too deeply") from None
    except ValueError as error:
        raise BadArguments("arguments", f"not JSON: {error}") from error


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise BadArguments("arguments", "an object has the same key twice")
    return fields


def _refuse_constant(name: str) -> object:
    raise BadArguments("arguments", f"{name} is not JSON")


def _ms(time: timedelta) -> int:
    return time // timedelta(milliseconds=1)
