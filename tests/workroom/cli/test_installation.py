"""Who keeps an installation up, and who uses it, through processes that come and go."""

import os
import signal
import subprocess
import sys

import pytest

from workroom.cli.installation import AlreadyUp, Installation, NotUp
from workroom.paths import Home

HOLD = """
import sys
from pathlib import Path
from workroom.cli.installation import Installation
from workroom.paths import Home
installation = Installation(Home(Path(sys.argv[1])))
claim = {"owned": lambda: installation.owned(until_unused=True), "used": installation.used}
with claim[sys.argv[2]]():
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def home(tmp_path):
    return Home(tmp_path / "home").create()


@pytest.fixture
def installation(home):
    return Installation(home)


@pytest.fixture
def holder(home):
    """Starts processes that hold a claim; ends them when the test is over."""
    started = []

    def start(claim):
        process = subprocess.Popen(
            [sys.executable, "-c", HOLD, str(home.root), claim],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        assert process.stdout.readline() == "held\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_nobody_keeps_a_new_installation_up(installation):
    assert installation.owner() is None


def test_the_process_that_keeps_it_up_is_known_to_others(installation, holder):
    process = holder("owned")
    owner = installation.owner()
    assert owner is not None
    assert owner.pid == process.pid
    assert owner.until_unused


def test_a_second_one_is_told_who_was_first(installation, holder):
    process = holder("owned")
    with pytest.raises(AlreadyUp, match=str(process.pid)), installation.owned(until_unused=False):
        pass


def test_a_killed_process_keeps_nothing_up(installation, holder):
    process = holder("owned")
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert installation.owner() is None
    with installation.owned(until_unused=False):
        pass


def test_an_installation_is_unused_when_the_last_user_has_gone(installation, holder):
    first, second = holder("used"), holder("used")
    for process in (first, second):
        with installation.unused() as unused:
            assert not unused
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    with installation.unused() as unused:
        assert unused


async def test_one_who_leaves_does_not_wait_for_what_others_use(installation, holder):
    holder("owned")
    holder("used")
    await installation.left()
    assert installation.owner() is not None


async def test_stopping_what_is_not_up_says_so(installation):
    with pytest.raises(NotUp, match="not up"):
        await installation.down()
