"""What keeps an installation from starting: a message with the cure, and nothing left running."""

import os
import socket

import pytest

from tests.e2e.place import Done, ended, script

pytestmark = [pytest.mark.docker, pytest.mark.timeout(120)]

NOBODY = 65534
LOOK = """
script: look
steps:
  - calls: [{name: shell, arguments: {commands: [{command: 'true'}]}}]
  - answer: done
"""


def refused(done: Done, *texts: str) -> None:
    assert done.code not in (0, None), done.out
    assert "Traceback" not in done.out + done.err
    for text in texts:
        assert text in done.err, done.err


async def test_a_relative_home_is_refused(place):
    done = await place.workroom("run", "hi", WORKROOM_HOME="relative/home")
    refused(done, "WORKROOM_HOME=relative/home is not absolute")


async def test_a_home_too_long_for_sockets_is_refused_at_once(place):
    done = await place.workroom("run", "hi", WORKROOM_HOME=str(place.root / ("x" * 90)))
    refused(done, "the kernel takes 107", "set WORKROOM_HOME to a shorter path")


async def test_a_home_that_cannot_be_made_is_named(place):
    done = await place.workroom("up", WORKROOM_HOME="/proc/here/home")
    refused(done, "/proc/here", "set WORKROOM_HOME")


async def test_a_home_that_is_a_file_is_named(place):
    place.home.write_text("")
    refused(await place.workroom("run", "hi"), f"{place.home} is not a folder")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give folders away")
async def test_a_home_of_another_user_is_refused(place):
    place.home.mkdir()
    os.chown(place.home, NOBODY, NOBODY)
    done = await place.workroom("run", "hi")
    refused(done, f"belongs to uid {NOBODY}", "set WORKROOM_HOME to a folder of your own")


@pytest.mark.slow
async def test_a_setting_with_a_typing_error_is_named_with_the_nearest(place):
    done = await place.workroom("up", "--no-setup", ORCHESTRATOR_ADRESS="127.0.0.1:0")
    refused(done, "ORCHESTRATOR_ADRESS", "did you mean ORCHESTRATOR_ADDRESS?")


async def test_a_port_in_use_is_named_and_nothing_stays_up(place):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        words = ("up", "--no-setup", "--detach")
        done = await place.workroom(*words, ORCHESTRATOR_ADDRESS=address)
    refused(done, f"another server listens on {address}", "ORCHESTRATOR_ADDRESS")
    await place.settled()


async def test_no_engine_where_one_is_named_is_refused_with_the_cure(place):
    dead = f"unix://{place.root}/no.sock"
    for words in (("run", "hi"), ("up",), ("up", "--detach")):
        done = await place.workroom(*words, DOCKER_HOST=dead)
        refused(done, f"no engine answers at {place.root}/no.sock", "DOCKER_HOST")
    await place.settled()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
async def test_no_engine_and_no_root_is_refused_with_the_cure(place):
    os.chown(place.root, NOBODY, NOBODY)
    os.chown(place.temporary, NOBODY, NOBODY)
    # Python and the sources may be where only root can read: reading is kept, root is not.
    process = await place.start_as(NOBODY, "run", "hi", DOCKER_HOST=f"unix://{place.root}/no.sock")
    done = await ended(process)
    refused(done, f"no engine answers at {place.root}/no.sock")
    await place.settled()


async def test_a_full_disk_is_said_to_be_full(place):
    (place.root / "data.csv").write_text("1")
    full = str(2**60)
    await place.up(RUNTIME_MIN_FREE_BYTES=full, ORCHESTRATOR_DISK_RESERVE_BYTES=full)
    words = ("run", "hi", "--script", script(place, LOOK))
    refused(await place.workroom(*words), "disk", "free space")
    refused(await place.workroom(*words, "--file", "data.csv"), "disk", "delete")
    assert not list((place.home / "db" / "blobs").rglob("*.*"))
