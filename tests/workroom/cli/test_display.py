"""What a person sees of a session's events."""

import click
import pytest

from workroom.cli.display import Display, ending, printable, usage_line
from workroom.orchestrator.v1 import events_pb2, turns_pb2


@pytest.fixture
def shown():
    return []


@pytest.fixture
def display(shown):
    return Display(lambda line: shown.append(click.unstyle(line)))


def command_added(item_id, command):
    item = turns_pb2.Item(id=item_id)
    item.command_execution.command = command
    return events_pb2.Event(item_added=events_pb2.ItemChanged(item=item))


def output(item_id, text, *, stderr=False, gap=False):
    delta = events_pb2.CommandOutputDelta(
        item_id=item_id, delta=text, is_stderr=stderr, after_gap=gap
    )
    return events_pb2.Event(command_output_delta=delta)


def command_done(item_id, **outcome):
    item = turns_pb2.Item(id=item_id)
    item.command_execution.CopyFrom(turns_pb2.CommandExecution(**outcome))
    return events_pb2.Event(item_done=events_pb2.ItemChanged(item=item))


def test_concurrent_commands_are_told_apart(display, shown):
    for event in (
        command_added("cmd_a", "sleep 1; echo a"),
        command_added("cmd_b", "echo b"),
        output("cmd_b", "b\n"),
        output("cmd_a", "a\n"),
    ):
        display.show(event)
    assert shown == ["[1] $ sleep 1; echo a", "[2] $ echo b", "[2] b", "[1] a"]


def test_a_line_that_comes_in_pieces_is_shown_once_and_whole(display, shown):
    display.show(command_added("cmd_a", "x"))
    for piece in ("one l", "ine\ntwo", " and a half"):
        display.show(output("cmd_a", piece))
    display.show(command_done("cmd_a", exit_code=0))
    assert shown[1:] == ["[1] one line", "[1] two and a half", "[1] exit 0 after 0.0 s"]


def test_the_two_outputs_of_a_command_do_not_mix_within_a_line(display, shown):
    display.show(command_added("cmd_a", "x"))
    display.show(output("cmd_a", "half "))
    display.show(output("cmd_a", "error\n", stderr=True))
    display.show(output("cmd_a", "whole\n"))
    assert shown[1:] == ["[1] error", "[1] half whole"]


def test_an_endless_line_is_not_kept_back_for_ever(display, shown):
    display.show(command_added("cmd_a", "x"))
    display.show(output("cmd_a", "y" * 5_000))
    assert shown[1] == "[1] " + "y" * 5_000


def test_output_cannot_steer_the_terminal(display, shown):
    display.show(command_added("cmd_a", "printf '\x1b[2J'"))
    display.show(output("cmd_a", "\x1b]0;title\x07clear\x1b[2J\r\n"))
    assert not any("\x1b" in line or "\x07" in line or "\r" in line for line in shown)


def test_output_that_was_left_out_is_marked(display, shown):
    display.show(command_added("cmd_a", "yes"))
    display.show(output("cmd_a", "y\n", gap=True))
    assert shown[1:] == ["[1] …", "[1] y"]


def test_the_end_of_output_that_was_too_fast_to_follow_is_shown(display, shown):
    numbers = "".join(f"{n}\n" for n in range(1_000))
    display.show(command_added("cmd_a", "seq 0 999"))
    display.show(output("cmd_a", numbers[:20]))
    display.show(command_done("cmd_a", exit_code=0, stdout=numbers))
    end = shown.index("[1] … and at its end")
    assert shown[end + 1 :] == [*(f"[1] {n}" for n in range(901, 1_000)), "[1] exit 0 after 0.0 s"]


def test_the_end_that_was_seen_is_not_shown_again(display, shown):
    numbers = "".join(f"{n}\n" for n in range(1_000))
    display.show(command_added("cmd_a", "seq 0 999"))
    display.show(output("cmd_a", numbers))
    display.show(command_done("cmd_a", exit_code=0, stdout=numbers[:50] + "…" + numbers[-50:]))
    assert not any("at its end" in line for line in shown)


def test_a_script_of_several_lines_is_shown_by_its_first(display, shown):
    display.show(command_added("cmd_a", "cat <<E\nx\nE"))
    assert shown == ["[1] $ cat <<E  (and 2 more lines)"]


@pytest.mark.parametrize(
    "outcome, words",
    [
        ({"exit_code": 3}, "exit 3"),
        ({"exit_code": 0}, "exit 0"),
        ({"signal": 9}, "ended by signal 9"),
        ({"ended": "timed out after 2 s"}, "timed out after 2 s"),
    ],
)
def test_each_ending_has_its_words(outcome, words):
    assert ending(turns_pb2.CommandExecution(**outcome)) == words


def test_printable_keeps_lines_tabs_and_letters_of_any_script():
    assert printable("a\tb\nć ☕ 漢") == "a\tb\nć ☕ 漢"


def test_usage_names_the_reviewer_only_where_it_used_something():
    usage = turns_pb2.Usage(
        agent=turns_pb2.TokenUsage(input_tokens=1200, output_tokens=30), model_calls=2
    )
    assert usage_line(usage) == "2 model calls, 1,200 tokens in (0 cached), 30 tokens out"
    usage.reviewer.input_tokens = 5
    assert "reviewer 5 in" in usage_line(usage)
