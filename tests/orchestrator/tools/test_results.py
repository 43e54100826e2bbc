from dataclasses import replace
from datetime import timedelta

import pytest

from orchestrator.records import CommandExecution, Ended, Exited, Signalled
from orchestrator.tools.followers import outcome_of
from orchestrator.tools.results import HELD, CommandResult, describe, render_results
from workroom.runtime.v1 import executions_pb2 as pb


def result(outcome, **fields):
    return CommandResult("cmd_1", "exec_1", outcome, **fields)


def test_one_command_is_told_without_a_number():
    told = render_results(
        [result(Exited(0), stdout="a\nb\n", stderr="c", duration=timedelta(seconds=0.256))]
    )
    assert told == "exit code 0 (0.26 s)\nstdout (4 characters):\na\nb\nstderr (1 characters):\nc"


def test_a_process_left_behind_with_the_output_is_told():
    left = result(Exited(0), stdout="on\n", output_held=True)
    assert render_results([left]) == f"exit code 0\nstdout (3 characters):\non\n{HELD}"
    assert render_results([replace(left, stdout="")]) == f"exit code 0\n(no output)\n{HELD}"


def test_several_commands_are_told_in_order():
    told = render_results([result(Exited(1)), result(Ended("cancelled"), stdout="x")])
    assert told == (
        "Command 1 of 2: exit code 1\n(no output)\n\n"
        "Command 2 of 2: cancelled\nstdout (1 characters):\nx"
    )


def test_a_recorded_item_is_told_like_its_result():
    item = CommandExecution(
        "call_1", "ls", timedelta(seconds=1), 10, outcome=Exited(0), stdout="x\n"
    )
    assert render_results([item]) == render_results([result(Exited(0), stdout="x\n")])


@pytest.mark.parametrize(
    ("told", "words"),
    [
        (result(Signalled(9)), "ended by signal 9 (SIGKILL)"),
        (result(Signalled(63)), "ended by signal 63"),
        (result(Ended("timed out after 2 s and was ended")), "timed out after 2 s and was ended"),
        (result(None, still_running=True), "still running"),
        (result(None), "cut short, no result"),
    ],
)
def test_every_end_has_words(told, words):
    assert describe(told) == words


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        (pb.Outcome(exited=pb.Exited(code=0)), Exited(0)),
        (pb.Outcome(signalled=pb.Signalled(signal=15)), Signalled(15)),
        (pb.Outcome(), Ended("ended, but the runtime did not say how")),
        (
            pb.Outcome(out_of_memory=pb.OutOfMemory()),
            Ended("ended by the kernel: the container ran out of memory"),
        ),
        (
            pb.Outcome(start_failed=pb.StartFailed(message="no shell")),
            Ended("not started: no shell"),
        ),
        (
            pb.Outcome(container_lost=pb.ContainerLost(message="engine gone")),
            Ended("container lost: engine gone"),
        ),
    ],
)
def test_no_outcome_is_made_up(outcome, expected):
    assert outcome_of(outcome, timedelta(seconds=1)) == expected
