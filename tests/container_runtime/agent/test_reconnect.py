"""Either side may go away: nothing is lost, nothing runs twice, nothing hangs."""

import asyncio
import hashlib
import os
import random
import signal
import time
from datetime import timedelta

import pytest

from container_runtime.agent import wire
from container_runtime.link import ContainerLost, ExecutionRepeated, SupervisorAway
from container_runtime.model import Ending, Stream
from tests.container_runtime.agent.supervised import eventually, processes


async def test_host_restarts_lose_no_byte(box, shared) -> None:
    data = random.Random(7).randbytes(1_000_000) * 20
    (shared / "data").write_bytes(data)
    async with box() as here:
        here.spool.delay = lambda exec_id: 0.002
        exec_id = await here.start(f"cat {shared}/data; echo done >&2; exit 6")
        for share in (0.1, 0.3, 0.5, 0.8):
            want = int(len(data) * share)
            await here.spool.until(lambda want=want: here.spool.counts.get((exec_id, 1), 0) > want)
            await here.restart_host()
            await here.come_back()
        outcome = await here.spool.wait(exec_id)
        assert (outcome.code, outcome.stdout_bytes) == (6, len(data))
        got = hashlib.sha256(here.spool.text(exec_id)).digest()
        assert got == hashlib.sha256(data).digest()
        assert here.spool.text(exec_id, Stream.STDERR) == b"done\n"


async def test_commands_go_on_and_outcomes_wait_while_the_host_is_away(box, shared) -> None:
    async with box() as here:
        writer = await here.start("head -c 2000000 /dev/zero; echo end; exit 3")
        quick = await here.start("sleep 0.3; echo quick; exit 4")
        deadline = await here.start("sleep 70.25", timeout=timedelta(seconds=0.5))
        typed = await here.start("cat", stdin=True)
        await here.link.stdin(typed, 0, b"before ")
        await here.restart_host()
        await eventually(lambda: processes("70.25") == [], 5)
        await here.come_back()
        assert (await here.spool.wait(writer)).code == 3
        assert here.spool.text(writer) == bytes(2_000_000) + b"end\n"
        assert (await here.spool.wait(quick)).code == 4
        assert here.spool.text(quick) == b"quick\n"
        assert (await here.spool.wait(deadline)).ending is Ending.TIMED_OUT
        assert here.link.status(typed).stdin_offset == 7
        await here.link.stdin(typed, 0, b"before after")
        await here.link.end_stdin(typed)
        assert (await here.spool.wait(typed)).code == 0
        assert here.spool.text(typed) == b"before after"


async def test_recorded_execution_is_not_run_again(box) -> None:
    async with box() as here:
        spec = here.spec("true")
        await here.link.start(spec)
        await here.spool.wait(spec.exec_id)
        await here.run("true")  # by now the supervisor knows that it is recorded
        with pytest.raises(ExecutionRepeated):
            await here.link.start(spec)


async def test_execution_that_the_new_host_does_not_know_is_ended(box) -> None:
    async with box() as here:
        exec_id = await here.start("sleep 71.25")
        here.spool.known.discard(exec_id)
        await here.restart_host()
        await here.come_back()
        await eventually(lambda: processes("71.25") == [])
        assert list(here.link.executions()) == []
        assert (await here.run("echo fine")).out == b"fine\n"


async def test_broken_connection_is_made_again_by_the_supervisor(box) -> None:
    async with box() as here:
        exec_id = await here.start("for i in 1 2 3 4 5 6; do echo $i; sleep 0.2; done")
        for _ in range(3):
            await here.spool.until(lambda: here.spool.text(exec_id) != b"")
            here.break_connection()
            await eventually(lambda: not here.link.connected)
            await here.link.ready()
        assert (await here.spool.wait(exec_id)).code == 0
        assert here.spool.text(exec_id) == b"1\n2\n3\n4\n5\n6\n"


async def test_calls_wait_for_the_supervisor_to_be_back(box) -> None:
    async with box() as here:
        here.break_connection()
        assert (await here.run("echo back")).out == b"back\n"


async def test_death_of_the_container_is_told_at_once_and_to_all(box) -> None:
    async with box() as here:
        running = [await here.start(f"echo {n}; sleep 72.25") for n in range(5)]
        for n, exec_id in enumerate(running):
            await here.spool.until(
                lambda exec_id=exec_id, n=n: here.spool.text(exec_id) == b"%d\n" % n
            )
        began = time.monotonic()
        os.kill(here.pid, signal.SIGKILL)
        for exec_id in running:
            outcome = await here.spool.wait(exec_id, 3)
            assert (outcome.ending, outcome.stdout_bytes) == (Ending.LOST, 2)
        assert time.monotonic() - began < 1
        assert here.losses == ["lost"]
        with pytest.raises(ContainerLost):
            await here.run("true")
        with pytest.raises(ContainerLost):
            await here.link.stat(b"/")


async def test_last_words_of_a_dying_container_are_kept(box) -> None:
    async with box() as here:
        exec_id = await here.start("echo last; sleep 73.25")
        await here.spool.until(lambda: here.spool.text(exec_id) == b"last\n")
        here.link.container_died()
        assert (await here.spool.wait(exec_id, 3)).ending is Ending.LOST
        assert here.link.lost


async def test_peers_other_than_the_main_process_are_refused(box) -> None:
    async with box() as here:
        reader, writer = await asyncio.open_unix_connection(str(here.directory / "host.sock"))
        writer.write(wire.control(wire.HELLO, 0, wire.VERSION, b"0" * 32))
        writer.write(wire.frame(wire.LISTED_ALL))
        async with asyncio.timeout(2):
            with pytest.raises(
                (ConnectionResetError, BrokenPipeError, asyncio.IncompleteReadError)
            ):
                await writer.drain()
                await reader.readexactly(1)
        writer.close()
        assert here.link.connected
        assert (await here.run("echo still")).out == b"still\n"


async def test_silent_absence_is_an_error_and_not_a_wait_for_ever(box) -> None:
    async with box() as here:
        await here.restart_host()
        here.link._attachment.away_timeout = timedelta(seconds=0.2)
        here.link.expect(here.pid)
        with pytest.raises(SupervisorAway):
            await here.run("true")
        await here.link.open()


async def test_sink_that_fails_costs_only_its_own_execution(box) -> None:
    async with box() as here:
        spec = here.spec("yes")
        here.spool.delay = lambda exec_id: 1 / 0 if exec_id == spec.exec_id else 0
        await here.link.start(spec)
        outcome = await here.spool.wait(spec.exec_id)
        assert outcome.ending is Ending.CANCELLED
        assert (await here.run("echo fine")).out == b"fine\n"
