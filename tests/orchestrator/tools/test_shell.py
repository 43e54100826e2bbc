import json
from datetime import timedelta
from typing import Any

import pytest

from orchestrator.tools import shell
from orchestrator.tools.shell import BadArguments, ShellCommand, parse_call


def call(**fields: object) -> str:
    return json.dumps({"commands": [{"command": "true"}], **fields})


def command(**fields: object) -> str:
    return json.dumps({"commands": [{"command": "true", **fields}]})


def test_defaults_are_filled_in():
    parsed = parse_call('{"commands": [{"command": "ls"}]}')
    assert parsed.commands == (
        ShellCommand("ls", "/workspace", timedelta(seconds=120), 10_000, False),
    )
    assert parsed.yield_time is None and parsed.justification == ""


def test_everything_that_can_be_said_is_read():
    arguments = {
        "commands": [
            {
                "command": "make",
                "cwd": "src/../app",
                "timeout_ms": 1500,
                "max_output_chars": 5,
                "as_root": True,
            },
            {"command": "ls", "cwd": "/tmp", "timeout_ms": None},
        ],
        "yield_time_ms": 0,
        "justification": "needs root",
    }
    parsed = parse_call(json.dumps(arguments))
    assert parsed.commands[0] == ShellCommand(
        "make", "/workspace/app", timedelta(seconds=1.5), 5, True
    )
    assert parsed.commands[1].cwd == "/tmp"
    assert parsed.yield_time == timedelta()
    assert parsed.justification == "needs root"


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ("", "commands"),
        ("not json", "arguments"),
        ('{"commands": [{"command": "a"}], "commands": []}', "arguments"),
        ('{"commands": NaN}', "arguments"),
        ("[" * 100_000, "arguments"),
        ("[]", "arguments"),
        ('{"commands": "ls"}', "commands"),
        ('{"commands": []}', "commands"),
        (json.dumps({"commands": [{"command": "true"}] * 17}), "commands"),
        ('{"commands": ["ls"]}', "commands[0]"),
        ('{"commands": [{"command": "a"}, {}]}', "commands[1].command"),
        (command(command="  "), "commands[0].command"),
        (command(command="a\0b"), "commands[0].command"),
        ('{"commands": [{"command": "\\ud800"}]}', "commands[0].command"),
        (command(command="é" * 70_000), "commands[0].command"),
        (command(cmd="ls"), "commands[0].cmd"),
        (command(cwd=3), "commands[0].cwd"),
        (command(timeout_ms=0), "commands[0].timeout_ms"),
        (command(timeout_ms=3_600_001), "commands[0].timeout_ms"),
        (command(timeout_ms=True), "commands[0].timeout_ms"),
        (command(timeout_ms=1.5), "commands[0].timeout_ms"),
        (command(timeout_ms="10"), "commands[0].timeout_ms"),
        (command(max_output_chars=100_001), "commands[0].max_output_chars"),
        (command(as_root=1), "commands[0].as_root"),
        (call(yield_time_ms=-1), "yield_time_ms"),
        (call(justification="x" * 4_097), "justification"),
        (call(workdir="/"), "workdir"),
    ],
)
def test_a_call_that_cannot_be_read_is_refused_with_the_field_named(arguments, field):
    with pytest.raises(BadArguments) as caught:
        parse_call(arguments)
    assert caught.value.field == field


def test_the_schema_says_the_same_limits():
    properties: Any = shell.PARAMETERS["properties"]
    commands = properties["commands"]
    fields = commands["items"]["properties"]
    assert commands["maxItems"] == shell.MAX_COMMANDS
    assert fields["timeout_ms"]["maximum"] == shell.MAX_TIMEOUT.total_seconds() * 1000
    assert str(shell.DEFAULT_OUTPUT_CHARS) in fields["max_output_chars"]["description"]
