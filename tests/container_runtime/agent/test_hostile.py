"""Each side takes the other for hostile: malformed frames cost a connection, never more."""

import asyncio
import os
import random
import resource
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from container_runtime.agent import wire
from container_runtime.interpreter import SOCKET_NAME
from container_runtime.link import Link
from container_runtime.model import Ending, StartSpec
from tests.container_runtime.agent.supervised import Spool, eventually, processes
from workroom.errors import WorkroomError

KINDS = sorted(wire.FROM_HOST | wire.FROM_SUPERVISOR)


def nonsense(source: random.Random, kinds: list[int]) -> bytes:
    """A frame that is well formed on the outside, or nearly."""
    kind = source.choice(kinds)
    payload = source.choice(
        [
            b"",
            source.randbytes(source.randrange(200)),
            wire.pack([source.randrange(-(2**62), 2**62) for _ in range(source.randrange(8))]),
            wire.pack([b"x" * source.randrange(50), [1], source.randrange(5)]),
            wire.start(
                source.randrange(32),
                (1, 1),
                -1,
                0,
                (-1,) * 6,
                b"f%d" % source.randrange(9),
                b"/",
                (b"/bin/true",),
                (),
            ),
            wire.pack([source.randrange(9), 0, b"/tmp", b"", 0, -1, 0]),
        ]
    )
    data = bytearray(
        wire.frame(
            kind,
            source.choice([0, 1, 2, source.randrange(2**32)]),
            source.randrange(4),
            source.choice([0, 1, 9, source.randrange(2**63)]),
            payload,
        )
    )
    if source.random() < 0.1:
        data[source.randrange(len(data))] = source.randrange(256)
    return bytes(data)


async def handshake(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer the supervisor's list: keep channel 1, forget the rest."""
    decoder = wire.Decoder(wire.FROM_SUPERVISOR)
    while True:
        data = await reader.read(4096)
        decoder.space()[: len(data)] = data
        for kind, _, channel, _, _ in decoder.received(len(data)):
            if kind == wire.LISTED and channel == 1:
                writer.write(wire.control(wire.RESUME, 1, 0, 0))
            elif kind == wire.LISTED:
                writer.write(wire.frame(wire.FORGET, channel))
            elif kind == wire.LISTED_ALL:
                writer.write(wire.control(wire.WELCOME, 0, wire.VERSION))
                return
        if not data:
            return


async def drop(writer: asyncio.StreamWriter) -> None:
    writer.close()
    try:
        await writer.wait_closed()
    except OSError:
        pass


async def test_supervisor_survives_a_host_that_talks_nonsense(box) -> None:
    source = random.Random(1)
    async with box() as here:
        kept = await here.start("sleep 74.25")
        await here.link.close()
        path = here.directory / SOCKET_NAME
        path.unlink(missing_ok=True)
        talks = 0
        enough = asyncio.Event()

        async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal talks
            try:
                if source.random() < 0.9:  # mostly past the handshake
                    await handshake(reader, writer)
                for _ in range(source.randrange(1, 30)):
                    writer.write(nonsense(source, KINDS if source.random() < 0.1 else HOST_KINDS))
                await writer.drain()
                async with asyncio.timeout(0.05):
                    await reader.read(-1)
            except (OSError, TimeoutError):
                pass
            talks += 1
            if talks >= 60:
                enough.set()
            await drop(writer)

        server = await asyncio.start_unix_server(talk, path)
        async with asyncio.timeout(25):
            await enough.wait()
        server.close()
        await server.wait_closed()
        here.link = here._new_link()
        here.spool.resume = lambda exec_id: _nothing()
        await here.come_back()
        done = await here.run("echo alive")
        assert (done.out, done.outcome.ending) == (b"alive\n", Ending.EXITED)
        assert kept is not None
        assert here.memory_kib() < 40_000


HOST_KINDS = sorted(wire.FROM_HOST)


async def _nothing() -> None:
    return None


@asynccontextmanager
async def impostor(directory: Path) -> AsyncIterator[tuple[Link, Spool]]:
    """A link that takes this very process for the container's main one."""
    spool = Spool()
    async with asyncio.TaskGroup() as tasks:
        link = Link(directory, spool, tasks, container_id="ctr_test")
        await link.open()
        link.expect(os.getpid())
        try:
            yield link, spool
        finally:
            await link.close()


async def greet(directory: Path) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_unix_connection(str(directory / SOCKET_NAME))
    writer.write(wire.control(wire.HELLO, 0, wire.VERSION, b"boot"))
    writer.write(wire.frame(wire.LISTED_ALL))
    await writer.drain()
    return reader, writer


async def test_host_survives_a_supervisor_that_talks_nonsense(tmp_path) -> None:
    source = random.Random(2)
    async with impostor(tmp_path) as (link, spool):
        starting: list[asyncio.Future[None]] = []
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for _ in range(150):
            reader, writer = await greet(tmp_path)
            await link.ready()
            starting.append(asyncio.ensure_future(_start(link, len(starting))))
            await asyncio.sleep(0)
            try:
                for _ in range(30):
                    writer.write(nonsense(source, sorted(wire.FROM_SUPERVISOR)))
                await writer.drain()
                async with asyncio.timeout(0.02):
                    await reader.read(-1)
            except (OSError, TimeoutError):
                pass
            await drop(writer)
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000
        link.container_died()
        await asyncio.gather(*starting)
        assert all(outcome.ending in set(Ending) for outcome in spool.outcomes.values())


async def _start(link: Link, number: int) -> None:
    try:
        await link.start(StartSpec(f"exec_{number}", argv=(b"true",)))
    except WorkroomError:
        pass


@pytest.mark.parametrize("excess", ["window", "gap", "count", "stdin", "channel"])
async def test_supervisor_beyond_its_bounds_is_dropped(tmp_path, excess: str) -> None:
    async with impostor(tmp_path) as (link, spool):
        reader, writer = await greet(tmp_path)
        spool.stall("exec_0")
        starting = asyncio.ensure_future(_start(link, 0))
        await reader.readuntil(b"true")
        writer.write(wire.frame(wire.STARTED, 1))
        head = wire.ENDED_HEAD.pack(wire.EXITED, 0, -1, 0, 0, 99, 0, 0, 0, 0, 0)
        chunk = bytes(wire.MAX_PAYLOAD)
        writer.write(
            {
                "window": b"".join(
                    wire.frame(wire.OUTPUT, 1, 1, at * len(chunk), chunk) for at in range(5)
                ),
                "gap": wire.frame(wire.OUTPUT, 1, 1, 5, b"x"),
                "count": wire.frame(wire.ENDED, 1, payload=head),
                "stdin": wire.frame(wire.STDIN_TAKEN, 1, offset=7),
                "channel": wire.frame(wire.STARTED, 77),
            }[excess]
        )
        try:
            await writer.drain()
            async with asyncio.timeout(3):
                while await reader.read(65_536):
                    pass
        except ConnectionError:
            pass
        await eventually(lambda: not link.connected)
        await starting
        spool.stall("exec_0").set()
        await drop(writer)


async def test_root_command_that_strips_its_mark_dies_with_the_last_root_execution(box) -> None:
    script = (
        "setpriv --clear-groups setsid sleep 75.25 & setpriv --clear-groups sleep 75.25 & sleep 0.3"
    )
    async with box() as here:
        kept = await here.start("setsid sleep 76.25 & sleep 76.25")
        await eventually(lambda: len(processes("sleep\0" + "76.25")) == 2)
        done = await here.run(script, root=True)
        assert done.outcome.code == 0
        await eventually(lambda: processes("sleep\0" + "75.25") == [])
        assert len(processes("sleep\0" + "76.25")) == 2, "what is marked is left alone"
        await here.link.cancel(kept, timedelta(0))
        await here.spool.wait(kept)


async def test_stopping_children_before_they_are_programs_stops_only_them(box) -> None:
    script = """
import os, signal
while True:
    try:
        os.kill(-1, signal.SIGSTOP)
    except OSError:
        pass
"""
    async with box() as here:
        # The attacker stops whatever runs as its user, but never itself: kill(-1) spares it.
        attack = await here.start(argv=(b"/usr/bin/python3", b"-c", script.encode()))
        await eventually(lambda: processes("signal.SIGSTOP") != [])
        hit = [here.spec("true", timeout=timedelta(seconds=1)) for _ in range(3)]
        starting = [asyncio.ensure_future(here.link.start(spec)) for spec in hit]
        async with asyncio.timeout(20):
            await asyncio.gather(*starting)
        for _ in range(3):
            assert (await here.run("true", root=True)).outcome.code == 0
        await here.link.cancel(attack, timedelta(0))
        assert (await here.spool.wait(attack)).ending is Ending.CANCELLED
        for spec in hit:
            assert await here.spool.wait(spec.exec_id)
        assert (await here.run("echo alive")).out == b"alive\n"
