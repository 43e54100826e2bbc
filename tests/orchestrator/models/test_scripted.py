import dataclasses
import json

import pytest

from orchestrator.models.errors import ModelNotFound, ScriptFailed
from orchestrator.models.model import (
    Completed,
    FinishReason,
    FunctionCall,
    FunctionCallOutput,
    Message,
    ModelRequest,
    TextDelta,
    Usage,
)
from orchestrator.models.script_loader import read_script
from orchestrator.models.scripted import ScriptedModel
from tests.orchestrator.models.said import Heard, ask

DEMO = r"""
script: demo
turns:
  - when: drop
    steps:
      - say: I look.
        chunk: 3
        calls:
          - name: shell
            arguments: {commands: [{command: ls}]}
          - name: shell
            arguments: {commands: [{command: date}]}
      - calls:
          - name: shell
            arguments:
              commands: [{command: "rm {{ find: 'DROP (\\w+)' }}"}]
              limit: "{{ find: 'size (\\d+)', as: number }}"
        usage: {input_tokens: 90000, output_tokens: 10}
      - answer: |
          Dropped {{ find: 'DROP (\w+)', in: step 1 }}:

          | file | size |
          | --- | --- |
          {{ each: '^(\w+) size (\d+)', in: all, format: '| {1} | {2} |' }}
        delay: 1s..3s
  - when_instructions: summar
    steps: [{answer: A summary.}]
  - steps: [{answer: "You said {{ find: '.+', in: prompt }}."}]
"""


def model(*texts: str, sleep=None) -> ScriptedModel:
    scripts = [read_script(text, "test.yaml") for text in texts or [DEMO]]
    extra = {"sleep": sleep} if sleep else {}
    return ScriptedModel({script.name: script for script in scripts}, **extra)


def request(*items, **fields) -> ModelRequest:
    return ModelRequest("demo", [Message.of("user", "drop it"), *items], **fields)


async def play(start: ModelRequest, outputs: list[list[str]], clock) -> list[Heard]:
    """Go through a turn, a new player for each step as after a restart."""
    heard = []
    for answers in [*outputs, None]:
        said = await ask(model(sleep=clock.sleep), start)
        heard.append(said)
        calls = [item for item in said.items if isinstance(item, FunctionCall)]
        results = zip(calls, answers or [], strict=True)
        told = [FunctionCallOutput(call.call_id, text) for call, text in results]
        start = dataclasses.replace(start, items=[*start.items, *said.items, *told])
    return heard


OUTPUTS = [["DROP alpha\nalpha size 12", "beta size 7"], ["removed"]]


async def test_a_turn_is_played_by_whoever_is_asked(clock):
    with pytest.raises(ScriptFailed, match=r"step 2 .*find 'size"):
        await play(request(), [["DROP alpha", "x"], ["removed"]], clock)
    first, second, last = await play(request(), OUTPUTS, clock)
    assert first.text == "I look."
    assert [e.text for e in first.events if isinstance(e, TextDelta)] == ["I l", "ook", "."]
    assert [json.loads(item.arguments) for item in first.items[1:]] == [
        {"commands": [{"command": "ls"}]},
        {"commands": [{"command": "date"}]},
    ]
    assert json.loads(second.items[0].arguments) == {
        "commands": [{"command": "rm alpha"}],
        "limit": 12,
    }
    assert second.completed == Completed(FinishReason.TOOL_CALLS, Usage(90000, 0, 10, 0, 90010))
    assert last.text == (
        "Dropped alpha:\n\n| file | size |\n| --- | --- |\n| alpha | 12 |\n| beta | 7 |\n"
    )
    assert last.completed.finish_reason is FinishReason.STOP


async def test_the_same_request_has_the_same_answer(clock):
    once = await play(request(), OUTPUTS, clock)
    slept, clock.slept = clock.slept, []
    again = await play(request(), OUTPUTS, clock)
    assert [heard.events for heard in once] == [heard.events for heard in again]
    assert clock.slept == slept and 1 < slept[0] < 3


async def test_call_ids_are_new_in_every_step_and_turn(clock):
    turns = await play(request(), OUTPUTS, clock)
    earlier = [item for heard in turns for item in heard.items]
    again = await play(request(*earlier, Message.of("user", "drop it")), OUTPUTS, clock)
    items = earlier + [item for heard in again for item in heard.items]
    ids = [item.call_id for item in items if isinstance(item, FunctionCall)]
    assert len(ids) == 6 and len(set(ids)) == 6


async def test_the_users_words_choose_the_turn():
    hello = ModelRequest("demo", [Message.of("user", "drop"), Message.of("assistant", "ok"),
                                  Message.of("user", "hello")])  # fmt: skip
    assert (await ask(model(), hello)).text == "You said hello."
    summary = dataclasses.replace(hello, instructions="Please summarise.")
    assert (await ask(model(), summary)).text == "A summary."


async def test_a_caller_that_knows_the_step_is_believed(clock):
    note = Message.of("developer", "compacted")
    output = FunctionCallOutput("call_s1c1_0123456789ab", "DROP alpha\na size 1")
    heard = await ask(model(sleep=clock.sleep), request(note, output, turn_step=2))
    assert heard.text.startswith("Dropped alpha")


async def test_a_quote_that_matches_nothing_names_step_line_and_pattern():
    call = FunctionCall("call_s1c1_0123456789ab", "shell", "{}")
    output = FunctionCallOutput("call_s1c1_0123456789ab", "nothing here")
    with pytest.raises(ScriptFailed) as caught:
        await ask(model(), request(call, output))
    assert caught.value.message.startswith(
        "script 'demo', step 2 (line 13): find 'DROP (\\\\w+)' in last matches 0 times"
    )
    assert caught.value.metadata == {"script": "demo", "step": "2", "line": "13"}


async def test_a_turn_that_asks_for_more_steps_than_there_are_fails():
    with pytest.raises(ScriptFailed, match="has 3 steps for this turn, which asks for number 4"):
        await ask(model(), request(turn_step=3))


async def test_a_message_that_no_turn_is_for_fails():
    player = model("script: x\nturns: [{when: a, steps: [{answer: b}]}]")
    with pytest.raises(ScriptFailed, match="no turn for the message 'zzz'"):
        await ask(player, ModelRequest("any", [Message.of("user", "zzz")]))


async def test_the_model_name_chooses_among_scripts():
    one, two = "script: one\nsteps: [{answer: first}]", "script: two\nsteps: [{answer: second}]"
    player = model(one, two)
    assert (await ask(player, ModelRequest("two", []))).text == "second"
    with pytest.raises(ModelNotFound, match="one of one, two"):
        await ask(player, ModelRequest("three", []))
    player = model(one, two.replace("two", "default"))
    assert (await ask(player, ModelRequest("three", []))).text == "second"
    assert (await ask(model(one), ModelRequest("gpt", []))).text == "first"


async def test_usage_is_estimated_the_same_way_each_time():
    asked = ModelRequest("x", [Message.of("user", "12345678")], instructions="1234")
    heard = await ask(model("script: x\nsteps: [{answer: 12 chars long}]"), asked)
    assert heard.completed.usage == Usage(input_tokens=3, output_tokens=4, total_tokens=7)


async def test_pieces_are_paced(clock):
    text = "script: x\nsteps: [{answer: abcdef, chunk: 2, chunk_delay: 100ms, delay: 2}]"
    await ask(model(text, sleep=clock.sleep), ModelRequest("x", []))
    assert clock.slept == [2, 0.1, 0.1]
