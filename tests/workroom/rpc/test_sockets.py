import os
import socket
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.workroom.rpc.echo import Caller, echoing, text
from workroom.paths import UnusablePath
from workroom.rpc.channel import open_channel
from workroom.rpc.server import Listener, serving
from workroom.rpc.sockets import AddressInUse, claimed, restrict

NOBODY = 65534

CONNECT = """
import os, socket, sys
uid = int(sys.argv[2])
if uid != os.geteuid():
    os.setgroups([])
    os.setgid(uid)
    os.setuid(uid)
s = socket.socket(socket.AF_UNIX)
try:
    s.connect(sys.argv[1])
    print("connected")
except OSError as error:
    print(type(error).__name__)
"""


async def returning(request, context):
    return request


@pytest.fixture
def open_folder():
    """A folder that every user may enter."""
    with tempfile.TemporaryDirectory(prefix="wr-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


def connect_as(uid, path):
    result = subprocess.run(
        [sys.executable, "-I", "-c", CONNECT, str(path), str(uid)],
        capture_output=True,
        text=True,
        timeout=10,
    )
    return result.stdout.strip()


async def test_folder_and_socket_are_their_owners_alone(open_folder):
    async with echoing(open_folder, unary_unary=returning):
        path = open_folder / "run" / "echo.sock"
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert not list(path.parent.iterdir())


async def test_another_user_cannot_connect_even_in_an_opened_folder(open_folder):
    path = open_folder / "run" / "echo.sock"
    async with echoing(open_folder, unary_unary=returning):
        assert connect_as(os.geteuid(), path) == "connected"
        assert connect_as(NOBODY, path) == "PermissionError"
        path.parent.chmod(0o755)
        assert connect_as(NOBODY, path) == "PermissionError"


async def test_folder_that_others_may_enter_is_refused(open_folder):
    with pytest.raises(UnusablePath, match="mode 0700"):
        async with serving([], Listener(f"unix:{open_folder}/s.sock"), services=[]):
            pass


async def test_folder_of_another_user_is_refused(open_folder):
    folder = open_folder / "run"
    folder.mkdir(mode=0o700)
    os.chown(folder, NOBODY, NOBODY)
    with pytest.raises(UnusablePath, match=f"belongs to uid {NOBODY}"):
        async with serving([], Listener(f"unix:{folder}/s.sock"), services=[]):
            pass


async def test_second_server_on_a_socket_is_refused_and_the_first_unharmed(tmp_path):
    async with echoing(tmp_path, unary_unary=returning) as caller:
        address = f"unix:{tmp_path}/run/echo.sock"
        with pytest.raises(AddressInUse, match=address):
            async with serving([], Listener(address), services=[]):
                pass
        assert (await caller.unary_unary(text("a"), timeout=5)).value == "a"
        async with open_channel(address) as channel:
            assert (await Caller(channel).unary_unary(text("b"), timeout=5)).value == "b"


async def test_foreign_server_on_a_socket_is_not_displaced(tmp_path):
    path = tmp_path / "foreign.sock"
    with socket.socket(socket.AF_UNIX) as foreign:
        foreign.bind(str(path))
        foreign.listen()
        with pytest.raises(AddressInUse), claimed(path):
            pass
        assert path.exists()


def test_stale_socket_is_removed(tmp_path):
    path = tmp_path / "stale.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    with claimed(path):
        assert not path.exists()


@pytest.mark.parametrize("kind", ["file", "folder", "link"])
def test_what_is_no_socket_is_never_removed(tmp_path, kind):
    path = tmp_path / "s.sock"
    if kind == "file":
        path.write_text("precious")
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UnusablePath, match="not a socket"), claimed(path):
        pass
    assert os.path.lexists(path)


def test_claim_leaves_nothing_behind(tmp_path):
    path = tmp_path / "s.sock"
    for _ in range(2):
        with claimed(path), socket.socket(socket.AF_UNIX) as server:
            server.bind(str(path))
            restrict(path)
        assert not list(tmp_path.iterdir())


def test_too_long_a_path_names_the_cure(tmp_path):
    with pytest.raises(UnusablePath, match="shorter"), claimed(tmp_path / ("x" * 120)):
        pass
