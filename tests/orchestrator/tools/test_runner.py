import asyncio
import re
import time
from contextlib import aclosing
from datetime import timedelta
from itertools import count
from pathlib import Path

import pytest

from orchestrator.records import Ended, Exited, Signalled
from orchestrator.runtime_errors import ContainerGone, RuntimeUnavailable
from orchestrator.tools.followers import PlannedCommand
from orchestrator.tools.runner import AlreadyFollowed, CommandRunner

_numbers = count()
MARKER = re.compile(r"\n\[\.\.\. (\d+) characters left out \.\.\.\]\n")


def planned(script: str, *, limit: int = 10_000, seconds: float = 20, cwd="/workspace"):
    number = next(_numbers)
    return PlannedCommand(
        item_id=f"cmd_{number}",
        execution_id=f"exec_test_{number}",
        script=script,
        cwd=cwd,
        timeout=timedelta(seconds=seconds),
        max_output_chars=limit,
    )


async def results_of(runner: CommandRunner, container_id: str, *commands, **options):
    async with aclosing(runner.run(container_id, commands, **options)) as results:
        return [result async for result in results]


async def result_of(runner: CommandRunner, container_id: str, script: str, **options):
    results = await results_of(runner, container_id, planned(script, **options))
    return results[0]


async def until(condition) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


class Deltas:
    def __init__(self) -> None:
        self.texts: list[tuple[str, bool, str, bool]] = []

    def __call__(self, item_id: str, is_stderr: bool, text: str, after_gap: bool) -> None:
        self.texts.append((item_id, is_stderr, text, after_gap))

    def text(self, item_id: str, is_stderr: bool = False) -> str:
        return "".join(t for i, e, t, _ in self.texts if i == item_id and e == is_stderr)


async def test_a_command_gives_its_code_and_both_streams(runner, container_id):
    result = await result_of(runner, container_id, "echo out; echo err >&2; exit 3")
    assert result.outcome == Exited(3)
    assert (result.stdout, result.stderr) == ("out\n", "err\n")
    assert not result.still_running and not result.succeeded


async def test_commands_run_at_once_and_come_back_as_they_end(runner, container_id, fake_runtime):
    slow = planned("until test -e go; do sleep 0.01; done; echo slow")
    fast = planned("echo fast")
    async with aclosing(runner.run(container_id, [slow, fast])) as results:
        assert (await anext(results)).item_id == fast.item_id
        fake_runtime.path(container_id, "/workspace/go").touch()
        assert (await anext(results)).item_id == slow.item_id


async def test_the_ends_of_a_long_output_come_back_with_an_exact_count(runner, container_id):
    result = await result_of(runner, container_id, "seq 1 500000", limit=1000)
    whole = "".join(f"{n}\n" for n in range(1, 500_001))
    head, left_out, tail = MARKER.split(result.stdout)
    assert len(head) + len(tail) == 1000
    assert whole.startswith(head) and whole.endswith(tail)
    assert int(left_out) == len(whole) - 1000
    assert result.stdout_bytes == len(whole)


async def test_characters_survive_the_borders_of_chunks(runner, container_id):
    script = "head -c 150000 /dev/zero | sed 's/\\x00/☕/g'"
    deltas = Deltas()
    command = planned(script, limit=100_000)
    [result] = await results_of(runner, container_id, command, on_delta=deltas)
    head, left_out, tail = MARKER.split(result.stdout)
    assert head == tail == "☕" * 50_000
    assert int(left_out) == 50_000
    assert "\ufffd" not in deltas.text(command.item_id)


async def test_random_bytes_do_no_harm(runner, container_id):
    script = "head -c 300000 /dev/urandom; head -c 1000 /dev/urandom >&2"
    result = await result_of(runner, container_id, script)
    assert result.outcome == Exited(0)
    assert result.stdout_bytes == 300_000 and result.stderr_bytes == 1_000


async def test_standard_error_is_not_pushed_out_by_output(runner, container_id):
    script = "echo the reason >&2; seq 1 200000; echo the end >&2"
    result = await result_of(runner, container_id, script, limit=400)
    assert result.stderr == "the reason\nthe end\n"


async def test_a_command_that_times_out_gives_what_it_had(runner, container_id):
    result = await result_of(runner, container_id, "echo before; sleep 60", seconds=0.5)
    assert result.outcome == Ended("timed out after 0.5 s and was ended")
    assert result.stdout == "before\n"


async def test_a_signal_is_told_as_one(runner, container_id):
    result = await result_of(runner, container_id, "kill -9 $$")
    assert result.outcome == Signalled(9)


async def test_a_missing_directory_is_an_outcome(runner, container_id):
    result = await result_of(runner, container_id, "true", cwd="/workspace/none")
    assert isinstance(result.outcome, Ended)
    assert result.outcome.words.startswith("not started: ")


async def test_a_yielding_call_tells_what_there_is_and_lets_the_command_go_on(
    runner, container_id, fake_runtime
):
    command = planned("echo early; until test -e go; do sleep 0.01; done; echo late")
    [result] = await results_of(runner, container_id, command, yield_time=timedelta(seconds=0.5))
    assert result.still_running and result.outcome is None
    assert result.stdout == "early\n"
    fake_runtime.path(container_id, "/workspace/go").touch()
    again = await results_of(runner, container_id, command)
    assert again[0].outcome == Exited(0)
    assert again[0].stdout == "early\nlate\n"
    assert fake_runtime.starts == [command.execution_id]


async def test_a_yield_time_of_zero_still_starts_the_command(runner, container_id, fake_runtime):
    command = planned("sleep 30")
    [result] = await results_of(runner, container_id, command, yield_time=timedelta())
    assert result.still_running
    assert fake_runtime.starts == [command.execution_id]
    await runner.cancel([command.execution_id])


async def test_the_same_execution_is_not_followed_twice_at_once(runner, container_id):
    command = planned("sleep 30")
    async with aclosing(runner.run(container_id, [command])) as first:
        following = asyncio.ensure_future(anext(first))
        await asyncio.sleep(0)
        with pytest.raises(AlreadyFollowed):
            await results_of(runner, container_id, command)
        await runner.cancel([command.execution_id])
        assert (await following).outcome == Ended("cancelled")


async def test_a_cancelled_command_says_so_and_gives_what_it_had(runner, container_id):
    command = planned("echo begun; sleep 60")
    deltas = Deltas()

    async def cancel() -> None:
        await until(lambda: deltas.text(command.item_id) == "begun\n")
        await runner.cancel([command.execution_id, "exec_nobody_knows"])

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(cancel())
        [result] = await results_of(runner, container_id, command, on_delta=deltas)
    assert result.outcome == Ended("cancelled")
    assert result.stdout == "begun\n"


async def test_a_command_nobody_follows_can_be_cancelled(runner, container_id, fake_runtime):
    command = planned("sleep 60")
    await results_of(runner, container_id, command, yield_time=timedelta())
    await runner.cancel([command.execution_id])
    assert fake_runtime.executions[command.execution_id].outcome.HasField("cancelled")


async def test_a_caller_that_leaves_does_not_end_the_command(runner, container_id, fake_runtime):
    command = planned("until test -e go; do sleep 0.01; done; touch survived")
    task = asyncio.ensure_future(results_of(runner, container_id, command))
    await until(lambda: command.execution_id in fake_runtime.executions)
    task.cancel()
    await asyncio.wait([task])
    fake_runtime.path(container_id, "/workspace/go").touch()
    await until(fake_runtime.path(container_id, "/workspace/survived").exists)
    [result] = await results_of(runner, container_id, command)
    assert result.outcome == Exited(0)


async def test_the_stream_goes_on_where_it_was_when_the_runtime_comes_back(
    runner, container_id, fake_runtime
):
    script = "for n in $(seq 1 300); do echo line $n; echo error $n >&2; sleep 0.003; done"
    commands = [planned(script, limit=100_000) for _ in range(3)]
    deltas = Deltas()

    async def restart() -> None:
        for number in range(1, 4):
            await until(lambda n=number: len(deltas.text(commands[0].item_id)) > 600 * n)
            await fake_runtime.stop()
            await fake_runtime.start()

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(restart())
        results = await results_of(runner, container_id, *commands, on_delta=deltas)
    out = "".join(f"line {n}\n" for n in range(1, 301))
    err = "".join(f"error {n}\n" for n in range(1, 301))
    assert len(results) == 3
    for result in results:
        assert (result.stdout, result.stderr) == (out, err)
        assert deltas.text(result.item_id) == out
    assert len(fake_runtime.starts) == 3


async def test_a_command_ended_while_the_runtime_was_away_is_told_afterwards(
    runner, container_id, fake_runtime
):
    command = planned("echo begun; until test -e go; do sleep 0.01; done; seq 1 1000; exit 7")
    deltas = Deltas()

    async def interrupt() -> None:
        await until(lambda: deltas.texts)
        await fake_runtime.stop()
        fake_runtime.path(container_id, "/workspace/go").touch()
        await until(lambda: fake_runtime.executions[command.execution_id].outcome)
        await fake_runtime.start()

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(interrupt())
        [result] = await results_of(runner, container_id, command, on_delta=deltas)
    assert result.outcome == Exited(7)
    assert result.stdout == "begun\n" + "".join(f"{n}\n" for n in range(1, 1001))


async def test_a_runtime_that_stays_away_is_told(runtime_channel, container_id, fake_runtime):
    await fake_runtime.stop()
    async with CommandRunner(runtime_channel, patience=timedelta(seconds=0.3)) as runner:
        with pytest.raises(RuntimeUnavailable):
            await results_of(runner, container_id, planned("true"))
        await fake_runtime.start()
        result = await result_of(runner, container_id, "echo back")
        assert result.stdout == "back\n"


async def test_a_container_that_is_gone_is_told(runner):
    with pytest.raises(ContainerGone):
        await result_of(runner, "ctr_gone", "true")


async def test_a_watcher_that_fails_fails_its_call_alone(runner, container_id):
    def broken(*_: object) -> None:
        raise ValueError("broken watcher")

    with pytest.raises(ValueError, match="broken watcher"):
        await results_of(runner, container_id, planned("echo x"), on_delta=broken)
    assert (await result_of(runner, container_id, "echo fine")).stdout == "fine\n"


async def test_many_commands_are_not_mixed(runner, container_id):
    async def one(number: int) -> None:
        script = f"for i in 1 2 3; do echo {number} $i; done; echo e{number} >&2; exit {number}"
        result = await result_of(runner, container_id, script)
        assert result.outcome == Exited(number)
        assert result.stdout == "".join(f"{number} {i}\n" for i in (1, 2, 3))
        assert result.stderr == f"e{number}\n"

    async with asyncio.TaskGroup() as tasks:
        for number in range(60):
            tasks.create_task(one(number))


async def flood(runner: CommandRunner, container_id: str, seconds: float) -> None:
    """`yes` keeps memory flat, its deltas few, and another command prompt."""
    deltas = Deltas()
    sizes: list[int] = []

    async def measure() -> None:
        while True:
            await asyncio.sleep(0.2)
            sizes.append(resident_bytes())

    async with asyncio.TaskGroup() as tasks:
        measuring = tasks.create_task(measure())
        flooding = tasks.create_task(
            results_of(runner, container_id, planned("yes", seconds=seconds), on_delta=deltas)
        )
        await until(lambda: deltas.texts)
        begin = time.monotonic()
        assert (await result_of(runner, container_id, "echo prompt")).stdout == "prompt\n"
        assert time.monotonic() - begin < 2
        [result] = await flooding
        measuring.cancel()
    assert isinstance(result.outcome, Ended) and result.outcome.words.startswith("timed out")
    assert result.stdout.startswith("y\ny\n") and "left out" in result.stdout
    assert len(result.stdout) < 10_100
    assert any(after_gap for *_, after_gap in deltas.texts)
    assert len(deltas.texts) < (seconds + 3) * 25
    settled = sizes[len(sizes) // 3]
    assert max(sizes) - settled < 48 * 1024 * 1024


async def test_a_flood_of_output_leaves_memory_flat_and_others_prompt(runner, container_id):
    await flood(runner, container_id, 2)


@pytest.mark.slow
async def test_a_long_flood_of_output_leaves_memory_flat(runner, container_id):
    await flood(runner, container_id, 10)


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096
