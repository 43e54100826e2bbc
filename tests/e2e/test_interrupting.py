"""`workroom run` ended by a signal at some moment: exit code 130, and nothing of ours is left."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.e2e.place import Done, Place, ended, paths_below, script, seen, until
from tests.orchestrator.models.said import begun_stream
from tests.orchestrator.models.server import running_server

pytestmark = [pytest.mark.docker, pytest.mark.timeout(180)]

SLEEP = """
script: sleep
steps:
  - calls: [{name: shell, arguments: {commands: [{command: 'echo begun; sleep 600'}]}}]
  - answer: done
"""
INT, TERM, KILL = signal.SIGINT, signal.SIGTERM, signal.SIGKILL
GONE_WITHIN = 20.0

Process = asyncio.subprocess.Process


def running_process(text: str) -> Callable[[Place], Awaitable[None]]:
    """Waits until a process of the place has this in its command line."""

    async def wait(place: Place) -> None:
        async def there() -> bool:
            return any(text in line for line in place.processes().values())

        await until(there, every=0.005)

    return wait


def send(process: Process, number: signal.Signals) -> None:
    """As the terminal does: to the command and what it runs in its own group."""
    if number is KILL:
        process.kill()
    else:
        os.killpg(process.pid, number)


async def interrupted(process: Process, number: signal.Signals) -> Done:
    done = await ended(process, GONE_WITHIN + 20)
    assert "Traceback" not in done.out + done.err
    if number is KILL:
        assert done.code == -KILL
    else:
        assert done.code == 130
        assert "interrupted" in done.err
    return done


async def no_container(place: Place) -> None:
    async def none() -> bool:
        return not await place.containers()

    await until(none, GONE_WITHIN)


@asynccontextmanager
async def container_being_made(place: Place) -> AsyncIterator[Process]:
    process = await place.start("run", "hi", "--script", script(place, SLEEP))
    await seen(process, "making a container")
    yield process


@asynccontextmanager
async def command_running(place: Place) -> AsyncIterator[Process]:
    process = await place.start("run", "hi", "--script", script(place, SLEEP))
    await seen(process, "] begun")
    yield process


@asynccontextmanager
async def answer_streaming(place: Place) -> AsyncIterator[Process]:
    async with running_server() as server:
        server.always = server.stall(begun_stream("responses"))
        words = ("--base-url", server.base_url, "--model", "m")
        process = await place.start("run", "hi", *words)
        await server.stalled.wait()
        yield process


@asynccontextmanager
async def file_being_sent(place: Place) -> AsyncIterator[Process]:
    """The upload has begun: its bytes arrive in the orchestrator's folder."""
    with (place.root / "large.bin").open("wb") as file:
        file.truncate(1024**3)
    blobs = place.home / "db" / "blobs"

    async def begun() -> bool:
        return any(path.is_file() and path.stat().st_size for path in paths_below(blobs))

    words = ("--script", script(place, SLEEP), "--file", "large.bin")
    process = await place.start("run", "hi", *words)
    await until(begun)
    yield process
    assert not await begun()


MOMENTS = [
    pytest.param(container_being_made, INT, id="INT-making"),
    pytest.param(command_running, INT, id="INT-command"),
    pytest.param(answer_streaming, INT, id="INT-answer"),
    pytest.param(file_being_sent, INT, id="INT-upload", marks=pytest.mark.slow),
    pytest.param(container_being_made, TERM, id="TERM-making", marks=pytest.mark.slow),
    pytest.param(command_running, TERM, id="TERM-command"),
    pytest.param(answer_streaming, TERM, id="TERM-answer", marks=pytest.mark.slow),
    pytest.param(container_being_made, KILL, id="KILL-making"),
    pytest.param(command_running, KILL, id="KILL-command"),
    pytest.param(answer_streaming, KILL, id="KILL-answer", marks=pytest.mark.slow),
    pytest.param(file_being_sent, KILL, id="KILL-upload", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("moment", "number"), MOMENTS)
async def test_a_command_that_is_ended_takes_its_container_along(up, moment, number):
    async with moment(up) as process:
        send(process, number)
        await interrupted(process, number)
        await no_container(up)
    assert (await up.workroom("status")).code == 0


async def test_a_second_ctrl_c_does_not_leave_the_container_behind(up):
    async with command_running(up) as process:
        send(process, INT)
        send(process, INT)
        await interrupted(process, INT)
    await no_container(up)


async def test_a_killed_command_leaves_no_uploaded_file(up):
    (up.root / "data.csv").write_text("a,b\n1,2\n")
    words = ("--script", script(up, SLEEP), "--file", "data.csv")
    process = await up.start("run", "hi", *words)
    await seen(process, "] begun")
    send(process, KILL)
    await interrupted(process, KILL)
    blobs = up.home / "db" / "blobs"

    async def none() -> bool:
        return not any(path.is_file() for path in paths_below(blobs))

    await until(none, GONE_WITHIN)


FROM_NOTHING = [
    pytest.param("container_runtime.setup", INT, id="INT-setup"),
    pytest.param("-m orchestrator", INT, id="INT-services"),
    pytest.param("workroom.cli up", INT, id="INT-up", marks=pytest.mark.slow),
    pytest.param("-m reviewer", TERM, id="TERM-services", marks=pytest.mark.slow),
    pytest.param("container_runtime.setup", KILL, id="KILL-setup", marks=pytest.mark.slow),
    pytest.param("-m orchestrator", KILL, id="KILL-services", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("working", "number"), FROM_NOTHING)
async def test_a_command_that_is_ended_takes_what_it_started_along(place, working, number):
    process = await place.start("run", "hi", "--script", script(place, SLEEP))
    await running_process(working)(place)
    send(process, number)
    await interrupted(process, number)
    await place.settled(60)


async def test_a_command_that_still_loads_is_interrupted_without_a_traceback(place):
    process = await place.start("run", "hi", "--script", script(place, SLEEP))

    maps = Path(f"/proc/{process.pid}/maps")

    def mapped() -> str:
        return maps.read_text()

    async def loading() -> bool:
        return "cygrpc" in mapped()

    await until(loading, every=0.002)
    send(process, INT)
    done = await ended(process)
    assert done.code == 130 and "Traceback" not in done.err
    await place.settled()


@pytest.mark.slow
@pytest.mark.parametrize("number", [INT, TERM, KILL])
async def test_a_command_that_started_the_services_takes_them_along(place, number):
    async with command_running(place) as process:
        send(process, number)
        await interrupted(process, number)
    await place.settled(60)
