"""How executions end, and that nothing about it is made up."""

import asyncio
import signal
import time
from datetime import timedelta
from typing import Any

import pytest

from container_runtime.link import ExecutionNotFound
from container_runtime.model import Ending, Limits, StartStage
from tests.container_runtime.agent.supervised import eventually, processes
from workroom.errors import InvalidField


async def test_every_exit_code_is_reported_exactly(box) -> None:
    async with box() as here:
        done = await asyncio.gather(*(here.run(f"exit {code}") for code in range(256)))
        assert [each.outcome.code for each in done] == list(range(256))
        assert {each.outcome.ending for each in done} == {Ending.EXITED}


@pytest.mark.parametrize("number", [1, 2, 6, 9, 11, 13, 15, 34, 64])
async def test_death_by_signal_is_not_an_exit_code(box, number: int) -> None:
    async with box() as here:
        done = await here.run(f"kill -{number} $$; sleep 5")
        assert (done.outcome.ending, done.outcome.signal) == (Ending.SIGNALLED, number)
        assert done.outcome.code is None


async def test_byte_totals_are_counted_at_the_source(box) -> None:
    async with box() as here:
        done = await here.run("head -c 300000 /dev/zero; head -c 1234 /dev/zero >&2")
        assert (done.outcome.stdout_bytes, done.outcome.stderr_bytes) == (300_000, 1234)
        assert (len(done.out), len(done.err)) == (300_000, 1234)


async def test_missing_program_is_a_failed_start_with_its_errno(box) -> None:
    async with box() as here:
        done = await here.run(argv=(b"no-such-program",))
        assert done.outcome.ending is Ending.START_FAILED
        assert (done.outcome.stage, done.outcome.errno) == (StartStage.EXEC, 2)
        assert "no-such-program" in done.outcome.message
        done = await here.run(argv=(b"/etc/passwd",))
        assert (done.outcome.stage, done.outcome.errno) == (StartStage.EXEC, 13)


async def test_missing_directory_is_a_failed_start_of_its_own(box) -> None:
    async with box() as here:
        done = await here.run("true", cwd=b"/no/such/place")
        assert (done.outcome.stage, done.outcome.errno) == (StartStage.CWD, 2)
        assert "/no/such/place" in done.outcome.message


async def test_directory_of_root_alone_is_refused_to_the_user(box, shared) -> None:
    shared.chmod(0o700)
    async with box() as here:
        done = await here.run("true", cwd=bytes(shared))
        assert (done.outcome.stage, done.outcome.errno) == (StartStage.CWD, 13)
        done = await here.run("pwd", cwd=bytes(shared), root=True)
        assert done.out == bytes(shared) + b"\n"


async def test_exit_is_reported_although_a_child_holds_the_pipe(box) -> None:
    async with box() as here:
        began = time.monotonic()
        done = await here.run("sleep 61.25 & exit 3")
        assert time.monotonic() - began < 1
        assert (done.outcome.code, done.outcome.pipe_held) == (3, True)
        assert processes("61.25"), "a background child is left alone"
        began = time.monotonic()
        done = await here.run("exit 4")
        assert (done.outcome.code, done.outcome.pipe_held) == (4, False)
        assert time.monotonic() - began < 1, "and the next command does not wait for it"


async def test_background_child_may_go_on_writing(box, shared) -> None:
    witness = shared / "witness"
    async with box() as here:
        script = f"(sleep 1; head -c 1000000 /dev/zero && echo alive > {witness}) & exit 0"
        done = await here.run(script)
        assert done.outcome.pipe_held
        await eventually(lambda: witness.exists() and witness.read_text() == "alive\n")


async def test_output_of_a_child_that_ends_soon_after_is_not_lost(box) -> None:
    async with box() as here:
        done = await here.run("(sleep 0.1; echo late) & exit 0")
        assert (done.out, done.outcome.pipe_held) == (b"late\n", False)


async def test_timeout_kills_the_tree_and_keeps_what_was_written(box) -> None:
    async with box() as here:
        done = await here.run(
            "echo before; sleep 62.25 & sleep 62.25",
            timeout=timedelta(seconds=0.5),
            grace=timedelta(seconds=5),
        )
        assert (done.outcome.ending, done.out) == (Ending.TIMED_OUT, b"before\n")
        assert done.outcome.duration < timedelta(seconds=3), "TERM was enough"
        assert processes("62.25") == []


async def test_timeout_spares_other_executions(box) -> None:
    async with box() as here:
        other = await here.start("sleep 1; echo fine")
        done = await here.run("sleep 63.25", timeout=timedelta(seconds=0.3))
        assert done.outcome.ending is Ending.TIMED_OUT
        assert (await here.spool.wait(other)).code == 0
        assert here.spool.text(other) == b"fine\n"


async def test_what_ignores_term_is_killed_after_the_grace(box) -> None:
    async with box() as here:
        done = await here.run(
            "trap '' TERM; while :; do sleep 64.25; done",
            timeout=timedelta(seconds=0.3),
            grace=timedelta(seconds=0.5),
        )
        assert (done.outcome.ending, done.outcome.signal) == (Ending.TIMED_OUT, 9)
        assert timedelta(seconds=0.8) <= done.outcome.duration < timedelta(seconds=3)
        assert processes("64.25") == []


async def test_double_forks_and_new_sessions_do_not_escape(box) -> None:
    async with box() as here:
        exec_id = await here.start(
            "setsid sh -c 'setsid sleep 65.25 & setsid sleep 65.25 & exit' &"
            " (sleep 65.25 &) ; echo up; sleep 65.25"
        )
        await here.spool.until(lambda: here.spool.text(exec_id) == b"up\n")
        await eventually(lambda: len(processes("65.25")) >= 4)
        began = time.monotonic()
        await here.link.cancel(exec_id, timedelta(0))
        outcome = await here.spool.wait(exec_id)
        took = time.monotonic() - began
        assert (outcome.ending, outcome.signal) == (Ending.CANCELLED, 9)
        assert processes("65.25") == []
        assert took < 0.5


async def test_cancel_may_be_said_twice_and_too_late(box) -> None:
    async with box() as here:
        exec_id = await here.start("trap '' TERM; echo up; while :; do sleep 66.25; done")
        await here.spool.until(lambda: here.spool.text(exec_id) == b"up\n")
        await here.link.cancel(exec_id, timedelta(seconds=30))
        await here.link.cancel(exec_id, timedelta(0))
        assert (await here.spool.wait(exec_id, 3)).ending is Ending.CANCELLED
        with pytest.raises(ExecutionNotFound):
            await here.link.cancel(exec_id)


async def test_signal_reaches_the_group(box) -> None:
    async with box() as here:
        exec_id = await here.start("trap 'echo got; exit 7' USR1; echo up; sleep 67.25 & wait")
        await here.spool.until(lambda: here.spool.text(exec_id) == b"up\n")
        await eventually(lambda: processes("sleep\0" + "67.25") != [])
        await here.link.signal(exec_id, signal.SIGUSR1)
        outcome = await here.spool.wait(exec_id)
        assert (outcome.code, here.spool.text(exec_id)) == (7, b"up\ngot\n")
        assert processes("sleep\0" + "67.25") == []


async def test_fork_bomb_is_a_failing_command_and_nothing_more(box) -> None:
    async with box() as here:
        bomb = await here.start("f() { f 68.25 | f 68.25 & }; f", limits=Limits(processes=150))
        assert (await here.spool.wait(bomb)).ending is Ending.EXITED
        done = await here.run("echo alive", root=True)
        assert done.out == b"alive\n"


async def test_limits_hold_from_the_first_instruction(box) -> None:
    async with box() as here:
        done = await here.run(
            "ulimit -n; ulimit -c; (head -c 100000 /dev/zero > /tmp/$$.big) 2>/dev/null;"
            " stat -c %s /tmp/$$.big; rm /tmp/$$.big",
            limits=Limits(open_files=37, core_bytes=0, file_bytes=51_200),
        )
        assert done.out.split() == [b"37", b"0", b"51200"]


async def test_same_id_joins_instead_of_running_twice(box, shared) -> None:
    async with box() as here:
        spec = here.spec(f"echo once >> {shared}/ran; sleep 0.5")
        await asyncio.gather(*(here.link.start(spec) for _ in range(5)))
        await here.spool.wait(spec.exec_id)
        assert (shared / "ran").read_text() == "once\n"


async def test_specifications_out_of_bounds_name_the_field(box) -> None:
    async with box() as here:
        wrong: dict[str, dict[str, Any]] = {
            "exec_id": {"exec_id": "_own", "argv": (b"true",)},
            "argv": {"argv": ()},
            "cwd": {"argv": (b"true",), "cwd": b"relative"},
            "timeout": {"argv": (b"true",), "timeout": timedelta(0)},
            "grace": {"argv": (b"true",), "grace": timedelta(seconds=61)},
            "env": {"argv": (b"true",), "env": {b"A=B": b""}},
            "script": {"script": b"#" * 900_001},
        }
        for field, how in wrong.items():
            with pytest.raises(InvalidField) as caught:
                await here.link.start(here.spec(**how))
            assert caught.value.field == field
        for argv in ((b"x\0y",), (b"",), (b"a" * 131_072,), (b"a",) * 4097):
            with pytest.raises(InvalidField):
                await here.link.start(here.spec(argv=argv))


async def test_long_arguments_and_scripts_pass(box) -> None:
    async with box() as here:
        done = await here.run(argv=(b"/usr/bin/printf", b"%s", b"x" * 131_071))
        assert done.out == b"x" * 131_071
        done = await here.run(b"# " + b"y" * 800_000 + b"\necho $((6*7)); exit 5")
        assert (done.out, done.outcome.code) == (b"42\n", 5)
        arguments = (b"z" * 100_000,) * 9
        done = await here.run(argv=(b"/bin/sh", b"-c", b"echo $#", b"sh", *arguments))
        assert done.out == b"9\n"
