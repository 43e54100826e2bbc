import asyncio
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from container_runtime.setup import daemon
from container_runtime.setup.answering import DEFAULT_SOCKET, Answer, ask, engine_socket
from container_runtime.setup.api import Engine, EngineApi
from container_runtime.setup.daemon import DaemonSpec, clear_stale_pid_file, owned_daemon
from container_runtime.setup.engine import check_usable, ensure_engine, start_daemon, stop_daemon
from container_runtime.setup.errors import (
    EngineRefused,
    EngineStartFailed,
    EngineUnavailable,
)
from tests.container_runtime.processes import processes_that_mention

HERE = Engine(version="1", system="linux", kernel=platform.release(), operating_system="Debian")
SOCKET = Path("/run/other.sock")
FAKE_ENGINE = """
import os, signal, socketserver, sys
from http.server import BaseHTTPRequestHandler

socket = next(a.removeprefix("--host=unix://") for a in sys.argv if a.startswith("--host="))

class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        body = b"[]" if "containers" in self.path else b"OK"
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def address_string(self):
        return "test"

class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True

signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
Server(socket, Handler).serve_forever()
"""


@pytest.fixture
async def spec(tmp_path):
    spec = DaemonSpec(
        state_dir=tmp_path / "state", socket=tmp_path / "engine.sock", pid_file=tmp_path / "pid"
    )
    yield spec
    await stop_daemon(spec, ignore, force=True)


@pytest.fixture
def short_path():
    """The engine's own parts listen on sockets below it, whose paths are bounded."""
    with tempfile.TemporaryDirectory(prefix="wr-", dir="/tmp") as path:
        yield Path(path)


@pytest.fixture
def told():
    return []


def ignore(_: str) -> None: ...


# Where an engine is looked for


def test_docker_host_names_the_socket():
    assert engine_socket({"DOCKER_HOST": "unix:///run/other.sock"}) == SOCKET


@pytest.mark.parametrize("host", ["tcp://127.0.0.1:2375", "ssh://user@host"])
def test_engine_that_may_be_on_another_machine_is_refused(host):
    with pytest.raises(EngineRefused) as raised:
        engine_socket({"DOCKER_HOST": host})

    assert "unix:///" in raised.value.message
    assert raised.value.metadata == {"docker_host": host}


async def test_socket_without_a_listener_is_nobody(tmp_path):
    assert await ask(tmp_path / "missing.sock") is Answer.NOBODY


async def test_missing_engine_at_a_chosen_address_is_not_replaced_by_ours(tmp_path):
    missing = tmp_path / "missing.sock"

    with pytest.raises(EngineUnavailable) as raised:
        await ensure_engine(
            ignore, state_dir=tmp_path, environment={"DOCKER_HOST": f"unix://{missing}"}
        )

    assert "unset DOCKER_HOST" in raised.value.message


# Which engine is usable


def test_engine_on_this_kernel_is_usable():
    check_usable(HERE, SOCKET)


@pytest.mark.parametrize(
    ("engine", "why"),
    [
        (replace(HERE, kernel="6.6.0-linuxkit"), "6.6.0-linuxkit"),
        (replace(HERE, system="windows"), "windows containers"),
        (replace(HERE, operating_system="Docker Desktop"), "virtual machine"),
    ],
)
def test_engine_elsewhere_is_refused_with_the_reason(engine, why):
    with pytest.raises(EngineRefused) as raised:
        check_usable(engine, SOCKET)

    assert why in raised.value.message


# Stale pid files


def test_pid_file_of_a_process_that_is_gone_is_removed(spec, told):
    with subprocess.Popen(["true"]) as process:
        process.wait()
    spec.pid_file.write_text(f"{process.pid}\n")

    assert clear_stale_pid_file(spec.pid_file, told.append) is None
    assert not spec.pid_file.exists()
    assert "is gone" in told[0]


def test_pid_file_of_a_zombie_is_removed(spec, told):
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    try:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        spec.pid_file.write_text(str(pid))
        assert clear_stale_pid_file(spec.pid_file, told.append) is None
    finally:
        os.waitpid(pid, 0)

    assert not spec.pid_file.exists()
    assert "zombie" in told[0]


def test_pid_file_of_a_process_that_is_no_engine_is_removed_and_the_process_left_alone(spec, told):
    with subprocess.Popen(["sleep", "60"]) as process:
        spec.pid_file.write_text(str(process.pid))

        assert clear_stale_pid_file(spec.pid_file, told.append) is None
        assert process.poll() is None
        process.kill()

    assert not spec.pid_file.exists()
    assert "'sleep'" in told[0]


def test_pid_file_of_a_live_engine_is_kept(spec, tmp_path):
    program = tmp_path / "dockerd"
    shutil.copy(shutil.which("sleep") or "", program)
    with subprocess.Popen([program, "60"]) as process:
        spec.pid_file.write_text(str(process.pid))

        assert clear_stale_pid_file(spec.pid_file, ignore) == process.pid
        process.kill()

    assert spec.pid_file.exists()


@pytest.mark.parametrize("content", ["", "garbage", "-1"])
def test_pid_file_without_a_pid_is_removed(spec, content):
    spec.pid_file.write_text(content)

    assert clear_stale_pid_file(spec.pid_file, ignore) is None
    assert not spec.pid_file.exists()


# Starting and stopping


async def test_engine_that_we_started_is_ours_and_is_stopped(spec):
    spec = replace(spec, launcher=(sys.executable, "-c", FAKE_ENGINE))
    await daemon.start(spec, ignore)
    owned = owned_daemon(spec)
    assert owned is not None
    assert await ask(spec.socket) is Answer.YES
    assert os.getsid(owned.pid) == owned.pid

    assert await stop_daemon(spec, ignore)

    assert not owned.is_alive()
    assert owned_daemon(spec) is None
    assert not await stop_daemon(spec, ignore)


async def test_engine_that_ends_at_once_is_an_error_with_the_end_of_its_log(spec):
    spec = replace(spec, launcher=("sh", "-c", "echo no space left >&2; exit 1"))

    with pytest.raises(EngineStartFailed) as raised:
        await daemon.start(spec, ignore)

    assert "no space left" in raised.value.message
    assert owned_daemon(spec) is None


async def test_engine_that_meets_a_pid_file_is_started_again(spec, tmp_path):
    once = tmp_path / "once"
    script = (
        f'if [ ! -e {once} ]; then touch {once}; echo "pid file found" >&2; exit 1; fi; '
        f"exec {sys.executable} -c '{FAKE_ENGINE}' \"$@\""
    )
    spec = replace(spec, launcher=("sh", "-c", script))

    await daemon.start(spec, ignore)

    assert await stop_daemon(spec, ignore)


async def test_missing_program_is_an_error(spec):
    spec = replace(spec, launcher=("no-such-launcher",))

    with pytest.raises(EngineStartFailed) as raised:
        await daemon.start(spec, ignore)

    assert "no-such-launcher" in raised.value.message


async def test_process_that_took_the_pid_of_ours_is_not_stopped(spec):
    process = await asyncio.create_subprocess_exec("sleep", "60")
    spec.state_dir.mkdir()
    spec.record.write_text(f'{{"pid": {process.pid}, "started": 1, "socket": "{spec.socket}"}}')

    assert not await stop_daemon(spec, ignore)
    assert process.returncode is None
    process.kill()
    await process.wait()


@pytest.mark.docker
async def test_engine_that_answers_is_used_as_it_is(tmp_path, told):
    engine = await ensure_engine(told.append, state_dir=tmp_path)

    assert await ask(engine.socket) is Answer.YES
    assert engine.version
    assert not engine.ours
    assert told == []
    assert not list(tmp_path.iterdir())


@pytest.mark.docker
@pytest.mark.timeout(120)
async def test_real_engine_starts_over_a_stale_pid_file_and_stops(spec, short_path, told):
    """In a network namespace of its own, so that the machine's own engine keeps its network."""
    spec.pid_file.write_text("4194305")  # above the kernel's highest pid
    spec = replace(
        spec,
        launcher=("unshare", "--net"),
        arguments=(
            f"--data-root={short_path / 'data'}",
            f"--exec-root={short_path / 'exec'}",
            "--bridge=none",
            "--iptables=false",
        ),
    )
    try:
        await daemon.start(spec, told.append)
        owned = owned_daemon(spec)
        assert owned is not None
        assert spec.pid_file.read_text() == str(owned.pid)
        async with EngineApi(spec.socket) as api:
            check_usable(await api.engine(), spec.socket)
            assert await api.running_containers() == []
    finally:
        stopped = await stop_daemon(spec, told.append, force=True)

    assert stopped
    assert "stale pid file" in told[0]
    assert not owned.is_alive()
    assert DEFAULT_SOCKET.is_socket()
    assert not processes_that_mention(str(short_path))


async def test_set_ups_at_the_same_time_start_one_engine(spec, told):
    spec = replace(spec, launcher=(sys.executable, "-c", FAKE_ENGINE))
    async with asyncio.TaskGroup() as tasks:
        for _ in range(4):
            tasks.create_task(start_daemon(spec, told.append))

    assert await stop_daemon(spec, ignore)
    assert len([line for line in told if line.startswith("starting")]) == 1
