"""Bytes in and out: complete, in order, bounded, and nobody waits for a slow reader."""

import asyncio
import hashlib
import os
import random
import time
from datetime import timedelta

import pytest

from container_runtime.agent import wire
from container_runtime.link import StdinClosed, StdinGap
from container_runtime.model import Ending, PtySize, Stream
from tests.container_runtime.agent.supervised import eventually


async def test_large_output_is_complete_although_its_reader_dawdles(box, shared) -> None:
    data = random.Random(5).randbytes(1_000_000) * 60
    (shared / "data").write_bytes(data)
    async with box() as here:
        here.spool.delay = lambda exec_id: 0.001
        done = await here.run(f"cat {shared}/data; exit 9", seconds=25)
        assert done.outcome.code == 9
        assert done.outcome.stdout_bytes == len(data)
        assert hashlib.sha256(done.out).digest() == hashlib.sha256(data).digest()


async def test_bytes_are_bytes(box, shared) -> None:
    data = "☕".encode() * 100_000 + os.urandom(300_000) + b"\xff\xfe\x00"
    (shared / "data").write_bytes(data)
    async with box() as here:
        done = await here.run(f"cat {shared}/data; cat {shared}/data >&2")
        assert done.out == data
        assert done.err == data


async def test_stalled_reader_holds_up_nobody_else(box) -> None:
    async with box() as here:
        spec = here.spec("head -c 10000000 /dev/zero")
        gate = here.spool.stall(spec.exec_id)
        await here.link.start(spec)
        dying = here.spec("yes")
        here.spool.stall(dying.exec_id)
        await here.link.start(dying)
        await here.link.cancel(dying.exec_id, timedelta(0))
        began = time.monotonic()
        done = await asyncio.gather(*(here.run("echo fine; exit 2") for _ in range(10)))
        assert time.monotonic() - began < 1
        assert {(each.outcome.code, each.out) for each in done} == {(2, b"fine\n")}
        gate.set()
        here.spool.stall(dying.exec_id).set()
        outcome = await here.spool.wait(spec.exec_id)
        assert (outcome.code, outcome.stdout_bytes) == (0, 10_000_000)
        outcome = await here.spool.wait(dying.exec_id)
        assert outcome.ending is Ending.CANCELLED
        assert outcome.stdout_bytes == len(here.spool.text(dying.exec_id))


async def test_stalled_reader_stops_the_command_and_memory_stays_flat(box) -> None:
    async with box() as here:
        before = here.memory_kib()
        specs = [here.spec("yes") for _ in range(20)]
        for spec in specs:
            here.spool.stall(spec.exec_id)
            await here.link.start(spec)
        await asyncio.sleep(1)  # as long as it takes to overrun any bound
        # Twenty full windows, and what the interpreter itself needs on top.
        assert here.memory_kib() - before < 20 * wire.WINDOW / 1024 + 4096
        for spec in specs:
            here.spool.stall(spec.exec_id).set()
            await here.link.cancel(spec.exec_id, timedelta(0))
        for spec in specs:
            assert (await here.spool.wait(spec.exec_id)).ending is Ending.CANCELLED


async def test_endless_output_leaves_memory_flat(box) -> None:
    async with box() as here:
        here.spool.keep = False
        exec_id = await here.start("yes & yes >&2 & wait")
        await here.spool.until(
            lambda: here.spool.counts.get((exec_id, Stream.STDERR), 0) > 20_000_000, 20
        )
        middle = here.memory_kib()
        done = here.spool.counts[exec_id, Stream.STDERR]
        await here.spool.until(
            lambda: here.spool.counts[exec_id, Stream.STDERR] > done + 60_000_000, 20
        )
        assert here.memory_kib() - middle < 1024
        assert here.spool.counts[exec_id, Stream.STDOUT] > 10_000_000, "stdout starved"
        await here.link.cancel(exec_id, timedelta(0))
        outcome = await here.spool.wait(exec_id)
        assert outcome.stdout_bytes == here.spool.counts[exec_id, Stream.STDOUT]


async def test_two_hundred_at_once_are_neither_lost_nor_mixed(box) -> None:
    async with box() as here:
        done = await asyncio.gather(
            *(
                here.run(f"echo out {n}; sleep 0.2; echo err {n} >&2; exit {n}", seconds=25)
                for n in range(200)
            )
        )
        for n, each in enumerate(done):
            assert (each.outcome.ending, each.outcome.code) == (Ending.EXITED, n)
            assert each.out == f"out {n}\n".encode()
            assert each.err == f"err {n}\n".encode()


async def test_cat_sees_the_end_of_stdin(box) -> None:
    async with box() as here:
        exec_id = await here.start("cat", stdin=True)
        await here.link.stdin(exec_id, 0, b"hello ")
        await here.link.stdin(exec_id, 6, b"world")
        await here.link.end_stdin(exec_id)
        assert (await here.spool.wait(exec_id)).code == 0
        assert here.spool.text(exec_id) == b"hello world"


async def test_stdin_may_end_before_anything_was_sent(box) -> None:
    async with box() as here:
        exec_id = await here.start("cat; echo done", stdin=True)
        await here.link.end_stdin(exec_id)
        await here.link.end_stdin(exec_id)
        await here.spool.wait(exec_id)
        assert here.spool.text(exec_id) == b"done\n"


async def test_without_stdin_the_command_reads_nothing(box) -> None:
    async with box() as here:
        exec_id = await here.start("cat; sleep 0.3")
        with pytest.raises(StdinClosed):
            await here.link.stdin(exec_id, 0, b"x")
        assert (await here.spool.wait(exec_id)).code == 0


async def test_stdin_sent_twice_arrives_once(box) -> None:
    async with box() as here:
        exec_id = await here.start("cat", stdin=True)
        await here.link.stdin(exec_id, 0, b"abc")
        await here.link.stdin(exec_id, 0, b"abcde")
        await here.link.stdin(exec_id, 2, b"cd")
        with pytest.raises(StdinGap) as caught:
            await here.link.stdin(exec_id, 9, b"j")
        assert caught.value.metadata["expected"] == "5"
        await here.link.end_stdin(exec_id)
        await here.spool.wait(exec_id)
        assert here.spool.text(exec_id) == b"abcde"


async def test_large_stdin_waits_for_its_reader(box) -> None:
    data = os.urandom(5_000_000)
    async with box() as here:
        exec_id = await here.start("sleep 0.5; sha256sum", stdin=True)
        sending = asyncio.ensure_future(here.link.stdin(exec_id, 0, data))
        await asyncio.sleep(0.2)
        assert not sending.done()
        assert here.link.status(exec_id).stdin_offset <= 2 * wire.WINDOW
        await sending
        await here.link.end_stdin(exec_id)
        await here.spool.wait(exec_id)
        assert here.spool.text(exec_id).split()[0].decode() == hashlib.sha256(data).hexdigest()


async def test_command_that_closes_its_stdin_says_so_and_lives(box) -> None:
    async with box() as here:
        exec_id = await here.start("exec 0<&-; echo up; sleep 1; echo done", stdin=True)
        await here.spool.until(lambda: here.spool.text(exec_id) == b"up\n")
        with pytest.raises(StdinClosed):
            for at in range(1000):
                await here.link.stdin(exec_id, at, b"x")
                await asyncio.sleep(0.001)
        assert (await here.spool.wait(exec_id)).code == 0


async def test_terminal_has_a_size_and_learns_of_a_new_one(box) -> None:
    async with box() as here:
        exec_id = await here.start(
            "stty size; trap 'stty size; exit 4' WINCH; echo ready; while :; do sleep 0.05; done",
            pty=PtySize(31, 97),
        )
        await here.spool.until(lambda: b"ready" in here.spool.text(exec_id))
        await here.link.resize(exec_id, PtySize(40, 120))
        outcome = await here.spool.wait(exec_id)
        assert outcome.code == 4
        assert here.spool.text(exec_id) == b"31 97\r\nready\r\n40 120\r\n"
        assert outcome.stderr_bytes == 0


async def test_terminal_is_the_controlling_one(box) -> None:
    async with box() as here:
        exec_id = await here.start(
            "tty; test -w /dev/tty && echo mine; echo ready; cat", pty=PtySize()
        )
        await here.spool.until(lambda: b"ready" in here.spool.text(exec_id))
        text = here.spool.text(exec_id)
        assert text.startswith(b"/dev/pts/")
        assert b"mine" in text
        await here.link.stdin(exec_id, 0, b"\x03")
        outcome = await here.spool.wait(exec_id)
        assert outcome.signal == 2 or outcome.code == 130


async def test_terminal_ends_its_stdin(box) -> None:
    async with box() as here:
        exec_id = await here.start("stty -echo; echo up; cat; echo done", pty=PtySize())
        await here.spool.until(lambda: b"up" in here.spool.text(exec_id))
        await here.link.stdin(exec_id, 0, b"half a line")
        await here.link.end_stdin(exec_id)
        await here.spool.wait(exec_id)
        assert here.spool.text(exec_id).endswith(b"half a linedone\r\n")


async def test_user_environment_and_directory(box, shared) -> None:
    async with box() as here:
        done = await here.run(
            'id -u; id -g; echo "$HOME $A"; pwd; cat /proc/self/oom_score_adj; umask',
            env={b"A": b"b c"},
            cwd=bytes(shared),
        )
        where = str(shared).encode()
        assert done.out.splitlines() == [
            b"1000",
            b"1000",
            b"/workspace b c",
            where,
            b"500",
            b"0022",
        ]
        done = await here.run('id -u; echo "$HOME $USER"', root=True)
        assert done.out == b"0\n/root root\n"


async def test_commands_begin_with_default_signals_and_three_descriptors(box) -> None:
    async with box() as here:
        done = await here.run(argv=(b"/bin/ls", b"/proc/self/fd"))
        assert done.out.split() == [b"0", b"1", b"2", b"3"], "3 is ls's own"
        done = await here.run(argv=(b"/bin/grep", b"-E", b"Sig(Blk|Ign)", b"/proc/self/status"))
        blocked, ignored = (int(line.split()[1], 16) for line in done.out.splitlines())
        assert blocked == 0
        assert ignored & ~(3 << 31) == 0, "all but the C library's own two"


async def test_nothing_inside_can_read_or_trace_the_supervisor(box) -> None:
    async with box() as here:
        done = await here.run("cat /proc/1/environ; ls /proc/1/fd; kill -9 1; kill -STOP 1")
        assert done.out == b""
        assert done.err.count(b"ermi") >= 3
        done = await here.run(
            "kill -9 1; kill -STOP 1; kill -INT 1; kill -CHLD 1; echo ok", root=True
        )
        assert done.out == b"ok\n"
        done = await here.run("echo alive")
        assert done.out == b"alive\n"


async def test_user_cannot_limit_or_kill_the_supervisors_threads(box) -> None:
    script = r"""
import ctypes, os, resource
libc = ctypes.CDLL(None, use_errno=True)
denied = 0
tasks = sorted(int(t) for t in os.listdir("/proc/1/task"))
for tid in tasks:
    try:
        resource.prlimit(tid, resource.RLIMIT_NOFILE, (0, 0))
    except (PermissionError, ProcessLookupError):
        denied += 1
    for number in (9, 19, 15, 2, 17, 34):
        libc.syscall(234, 1, tid, number)
print(denied == len(tasks), len(tasks) >= 3)
"""
    async with box() as here:
        done = await here.run(argv=(b"/usr/bin/python3", b"-c", script.encode()))
        assert done.out == b"True True\n", done.err
        await eventually(lambda: here.link.connected)
        assert (await here.run("echo alive")).out == b"alive\n"
