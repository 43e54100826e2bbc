import re
from pathlib import Path

import pytest

from orchestrator.models.errors import ScriptInvalid
from orchestrator.models.model import Usage
from orchestrator.models.script import Delay
from orchestrator.models.script_loader import load_scripts, read_script

GOOD = """
script: demo
description: Lists the files.
defaults: {delay: 0.5s..1.5s, chunk: 10}
steps:
  - say: I look.
    calls:
      - name: shell
        arguments: {commands: [{command: ls, timeout: 5, tail: null}]}
    usage: {input_tokens: 100, output_tokens: 5}
    repeat: 3
  - answer: Done.
    delay: 250ms
"""


def test_a_script_is_read_with_its_defaults():
    script = read_script(GOOD, "demo.yaml")
    (turn,) = script.turns
    assert (script.name, len(turn.steps)) == ("demo", 4)
    first, last = turn.steps[0], turn.steps[-1]
    assert (first.delay, first.chunk, first.line) == (Delay(0.5, 1.5), 10, 6)
    assert first.usage == Usage(100, 0, 5, 0, 105)
    assert first.calls[0].name == "shell"
    assert (last.delay, last.calls) == (Delay(0.25, 0.25), ())


def test_every_problem_is_told_with_its_line():
    text = """\
script: a name
steps:
  - cals: []
  - answer: early
  - calls:
      - arguments: {when: 2024-01-01, when: x}
      - name: shell
        arguments: [ls]
    delay: soon
    chunk: 0
  - say: "{{ find: '(x' }}"
    calls: [{name: shell, arguments: {a: "{{ find: 'x', in: step 9 }}"}}]
"""
    with pytest.raises(ScriptInvalid) as caught:
        read_script(text, "bad.yaml")
    lines = caught.value.message.splitlines()
    told = {tuple(line.split(":", 2)[1:]) for line in lines}
    assert all(line.startswith("bad.yaml:") for line in lines)
    by_line = {int(number): [p for n, p in told if n == number] for number, _ in told}
    expected = {
        1: "script: must name it",
        3: "unknown key 'cals' in a step",
        4: "an answer ends the turn",
        6: "key 'when' is there twice",
        8: "arguments: must be a mapping",
        9: "delay: must be seconds",
        10: "chunk: must be a whole number, 1 or more",
        11: "no regular expression",
        12: "cannot quote from step 9",
    }
    for number, problem in expected.items():
        assert any(problem in told for told in by_line[number]), (number, problem, lines)
    assert any("no JSON value" in line and ":6:" in line for line in lines)
    assert any("the last step must be an answer" in line for line in lines)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "bad.yaml:1: the file is empty"),
        ("script: [", "bad.yaml:1: "),
        ("- x", "bad.yaml:1: a script must be a mapping"),
        ("script: x", "either steps or turns"),
        ("script: x\nsteps: []", "bad.yaml:2: steps: must be a list that is not empty"),
        ("script: x\nsteps: [{answer: a, calls: [{name: b}]}]", "either an answer or calls"),
        ("script: x\nsteps: [{answer: a, say: b}]", "say and repeat belong to calls"),
        ("script: x\nsteps: [{answer: 3}]", "answer: must be text"),
        ("script: x\nsteps: [{answer: ''}]", "answer: must not be empty"),
        ("script: x\nsteps: [{answer: \"{{ find: 'x' }}\"}]", "nothing before it to quote"),
        ("script: x\nsteps: [{answer: \"a {{ find: 'x', in: prompt, as: json }}\"}]", "as: only"),
        ("script: x\nturns: [{when: '(', steps: [{answer: a}]}]", "no regular expression"),
        ("script: x\nturns: [{steps: [{answer: a}]}, {steps: [{answer: b}]}]", "the rest is hid"),
        ("script: x\nturns: [{when: a}]", "a turn has steps"),
        ("script: x\nsteps: !!python/object:os.system [a]", "a step must be a mapping"),
    ],
)
def test_a_script_that_cannot_be_played_is_refused(text, problem):
    with pytest.raises(ScriptInvalid) as caught:
        read_script(text, "bad.yaml")
    assert problem in caught.value.message


BOMB = (
    "script: x\nsteps:\n- calls:\n  - name: shell\n    arguments:\n      a0: &a0 [x]\n"
    + "".join(f"      a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12))
)


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (BOMB, "more than 10000 values"),
        (
            "script: x\nsteps: [{calls: [{name: a}], repeat: 1000000000000}]",
            "more than 10000 steps",
        ),
        (f"script: x\nsteps: [{{calls: [{{name: a, arguments: {'[' * 900}{']' * 900}}}]}}]", ""),
        ("script: x\nsteps: " + "[" * 100_000, "bad.yaml:2: "),
        ("script: x\nsteps:\n" + "".join(" " * n + "-\n" for n in range(600)), ""),
    ],
    ids=["aliases", "repeats", "deep", "deeper", "deep blocks"],
)
def test_few_words_that_mean_much_are_refused(text, problem):
    with pytest.raises(ScriptInvalid) as caught:
        read_script(text, "bad.yaml")
    assert problem in caught.value.message


def test_the_scripts_in_the_documentation_can_be_played():
    page = Path(__file__).parents[3] / "docs" / "scripts.md"
    blocks = re.findall(r"```yaml\n(.*?)```", page.read_text("utf-8"), re.DOTALL)
    assert [read_script(block, str(page)).name for block in blocks] == [
        "busy-airlines",
        "two-turns",
    ]


def test_a_folder_of_scripts_is_read_by_name(tmp_path):
    (tmp_path / "a.yaml").write_text("script: one\nsteps: [{answer: a}]")
    (tmp_path / "b.yaml").write_text("script: two\nsteps: [{answer: b}]")
    assert sorted(load_scripts(tmp_path)) == ["one", "two"]
    (tmp_path / "c.yaml").write_text("script: two\nsteps: [{answer: c}]")
    with pytest.raises(ScriptInvalid, match="another script 'two'"):
        load_scripts(tmp_path)


def test_a_missing_file_and_an_empty_folder_are_refused(tmp_path):
    with pytest.raises(ScriptInvalid, match="cannot be read"):
        load_scripts(tmp_path / "none.yaml")
    with pytest.raises(ScriptInvalid, match=r"holds no \*\.yaml"):
        load_scripts(tmp_path)
