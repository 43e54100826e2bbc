import asyncio
import os
import subprocess
import sys
from datetime import timedelta

import pytest

from container_runtime.setup.errors import SetupBusy
from container_runtime.setup.processes import locked, process_state, run
from tests.container_runtime.processes import processes_that_mention

SOON = timedelta(milliseconds=200)
LONG = timedelta(seconds=20)
HOLD_LOCK = """
import fcntl, sys
held = open(sys.argv[1], "w")
fcntl.flock(held, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


def ignore(_: str) -> None: ...


async def test_output_and_code_of_a_command_come_back():
    finished = await run("sh", "-c", "echo out; echo err >&2; exit 3", timeout=LONG)

    assert (finished.code, finished.output) == (3, "out\nerr\n")


async def test_missing_program_is_code_127():
    finished = await run("no-such-program", timeout=LONG)

    assert finished.code == 127
    assert "no-such-program" in finished.output


async def test_timeout_ends_the_command_and_its_children(tmp_path):
    mark = str(tmp_path)
    child = f"sh -c 'sleep 60; :' {mark}"

    finished = await run("sh", "-c", f"{child} & wait", mark, timeout=timedelta(seconds=1))

    assert finished.code == 124
    assert processes_that_mention(mark) == []


async def test_cancelled_caller_leaves_no_process(tmp_path):
    mark, started = str(tmp_path), tmp_path / "started"
    async with asyncio.TaskGroup() as tasks:
        command = ("sh", "-c", f"touch {started}; sleep 60 & wait", mark)
        running = tasks.create_task(run(*command, timeout=LONG))
        await until(started.exists)
        running.cancel()

    assert processes_that_mention(mark) == []


async def test_second_set_up_waits_for_the_first_and_says_so(tmp_path):
    lock = tmp_path / "lock"
    told: list[str] = []
    order: list[str] = []

    async def second() -> None:
        async with locked(lock, timeout=LONG, progress=told.append):
            order.append("second")

    async with asyncio.TaskGroup() as tasks:
        async with locked(lock, timeout=LONG, progress=ignore):
            tasks.create_task(second())
            await until(lambda: bool(told))
            order.append("first")

    assert order == ["first", "second"]
    assert str(lock) in told[0]


async def test_lock_that_stays_held_says_so(tmp_path):
    lock = tmp_path / "lock"
    async with locked(lock, timeout=LONG, progress=ignore):
        with pytest.raises(SetupBusy) as raised:
            async with locked(lock, timeout=SOON, progress=ignore):
                pass

    assert raised.value.metadata == {"path": str(lock)}


async def test_lock_is_free_again_when_its_holder_is_killed(tmp_path):
    lock = tmp_path / "lock"
    holder = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", HOLD_LOCK, lock), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert holder.stdout is not None
    await holder.stdout.readline()
    holder.kill()
    await holder.wait()

    async with locked(lock, timeout=SOON, progress=ignore):
        pass


def test_own_process_is_seen_with_a_start_time_that_stays():
    first, second = process_state(os.getpid()), process_state(os.getpid())

    assert first is not None
    assert first == second
    assert not first.zombie


def test_process_that_ended_unreaped_is_a_zombie():
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    try:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        state = process_state(pid)
        assert state is not None
        assert state.zombie
    finally:
        os.waitpid(pid, 0)
    assert process_state(pid) is None


async def until(condition) -> None:
    async with asyncio.timeout(LONG.total_seconds()):
        while True:
            if condition():
                return
            await asyncio.sleep(0.01)
