"""The supervisor in real containers: an image with nothing in it, and the base image."""

import asyncio
import errno
import io
import subprocess
import tarfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest

from container_runtime.interpreter import (
    BUNDLE_TARGET,
    CAPABILITIES,
    Bundle,
    supervisor_command,
    supervisor_environment,
    supervisor_mounts,
)
from container_runtime.link import Link
from container_runtime.model import Ending, StartStage
from tests.container_runtime.agent.supervised import Box, Spool, eventually

pytestmark = pytest.mark.docker

BASE = "workroom/base:latest"
LABEL = "workroom.test=supervisor"


async def docker(*words: str) -> str:
    process = await asyncio.create_subprocess_exec(
        "docker", *words, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    return out.decode().strip()


@pytest.fixture(scope="module")
def scratch() -> Iterator[str]:
    """An image without a single file."""
    empty = io.BytesIO()
    tarfile.open(fileobj=empty, mode="w").close()
    made = subprocess.run(
        ["docker", "import", "--change", f"LABEL {LABEL}", "-"],
        input=empty.getvalue() or bytes(10_240),
        stdout=subprocess.PIPE,
        check=True,
    )
    image = made.stdout.decode().strip()
    yield image
    subprocess.run(["docker", "rmi", image], stdout=subprocess.DEVNULL, check=True)


@asynccontextmanager
async def contained(
    bundle: Bundle, directory: Path, image: str, *options: str, env: dict[str, str] | None = None
) -> AsyncIterator[Box]:
    """A container with the supervisor as its main process."""
    spool = Spool()
    losses: list[str] = []
    async with asyncio.TaskGroup() as tasks:
        link = Link(
            directory, spool, tasks, container_id="ctr_test", on_lost=lambda: losses.append("lost")
        )
        await link.open()
        program, *arguments = supervisor_command(bundle)
        environment = (env or {}) | dict(supervisor_environment(env or {}))
        container = await docker(
            *("run", "-d", "--label", LABEL, "--network", "none", "--user", "0:0"),
            *("--workdir", "/", "--cap-drop", "ALL", "--security-opt", "no-new-privileges"),
            *(word for name in CAPABILITIES for word in ("--cap-add", name)),
            *(f"--env={name}={value}" for name, value in environment.items()),
            *(
                f"--volume={mount.source}:{mount.target}:ro"
                for mount in supervisor_mounts(bundle, directory)
            ),
            *options,
            *("--entrypoint", program, image, *arguments),
        )
        try:
            pid = int(await docker("inspect", "--format", "{{.State.Pid}}", container))
            link.expect(pid)
            await link.ready()
            process = await asyncio.create_subprocess_exec("true")
            await process.wait()
            yield Box(link, spool, directory, pid, tasks, process, losses)
        finally:
            await docker("rm", "-f", container)
            await link.close()


def own_python(bundle: Bundle, program: str) -> tuple[bytes, ...]:
    """A command for images that have none: the supervisor's own interpreter."""
    words = [*supervisor_command(bundle)[:-1], program]
    return tuple(word.encode() for word in words)


async def one(chunk: bytes) -> AsyncIterator[bytes]:
    yield chunk


async def test_empty_image_runs_commands_files_and_archives(bundle, scratch, tmp_path) -> None:
    async with contained(bundle, tmp_path, scratch) as here:
        program = "import os; os.write(1, b'%d %d' % (os.getuid(), os.getgid())); os._exit(7)"
        done = await here.run(argv=own_python(bundle, program))
        assert (done.out, done.outcome.code) == (b"1000 1000", 7)
        done = await here.run(argv=own_python(bundle, program), root=True)
        assert done.out == b"0 0"
        done = await here.run("true")
        assert (done.outcome.ending, done.outcome.stage) == (
            Ending.START_FAILED,
            StartStage.SHELL,
        )
        assert "argv" in done.outcome.message
        await here.link.mkdir(b"/workspace", mode=0o777, root=True)
        await here.link.write_file(b"a/b", one(b"data"), make_parents=True)
        archive = b"".join([chunk async for chunk in here.link.read_tar(b"a")])
        assert await here.link.write_tar(b"copy", one(archive)) == 2
        assert (await here.link.stat(b"copy/b")).size == 4


async def test_idle_memory_and_start_are_small(bundle, scratch, tmp_path) -> None:
    async with contained(bundle, tmp_path, scratch) as here:
        assert here.memory_kib("Pss") <= 12 * 1024
        await asyncio.gather(
            *(here.run(argv=own_python(bundle, "import os; os._exit(0)")) for _ in range(30))
        )
        assert here.memory_kib("Pss") <= 14 * 1024


async def test_bundle_is_read_only_and_the_socket_refuses_commands(
    bundle, scratch, tmp_path
) -> None:
    program = f"""
import os, _socket
for path in ("{BUNDLE_TARGET}/lib/x", "/run/workroom/link/x", "/run/workroom/link/host.sock"):
    try:
        os.open(path, os.O_WRONLY | os.O_CREAT); os.write(1, b"opened " + path.encode())
    except OSError as e:
        os.write(1, b"%d " % e.errno)
try:
    os.unlink("/run/workroom/link/host.sock"); os.write(1, b"removed")
except OSError as e:
    os.write(1, b"%d " % e.errno)
s = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
s.connect("/run/workroom/link/host.sock")
s.settimeout(3)
try:
    data = s.recv(1)
except OSError:
    data = b""
os.write(1, b"refused" if data == b"" else b"talked")
"""
    async with contained(bundle, tmp_path, scratch) as here:
        done = await here.run(argv=own_python(bundle, program), root=True)
        assert done.out.split() == [b"30", b"30", b"6", b"30", b"refused"], done.err
        assert here.link.connected


async def test_death_of_a_container_is_told_promptly(bundle, scratch, tmp_path) -> None:
    async with contained(bundle, tmp_path, scratch) as here:
        exec_id = await here.start(argv=own_python(bundle, "import time; time.sleep(99)"))
        containers = await docker("ps", "-q", "--no-trunc", "--filter", f"label={LABEL}")
        for container in containers.split():
            pid = await docker("inspect", "--format", "{{.State.Pid}}", container)
            if int(pid) == here.pid:
                await docker("kill", container)
        assert (await here.spool.wait(exec_id, 3)).ending is Ending.LOST
        assert here.losses == ["lost"]


async def test_base_image_runs_scripts_as_user_and_root(bundle, tmp_path) -> None:
    env = {"LD_PRELOAD": "/no/such/library.so", "OWN": "kept"}
    async with contained(bundle, tmp_path, BASE, env=env) as here:
        done = await here.run('id -u; echo "$LD_PRELOAD $OWN"; exit 3')
        assert done.out == b"1000\n/no/such/library.so kept\n"
        assert done.outcome.code == 3
        done = await here.run(
            "unset LD_PRELOAD; id -u; chown 1000 /root; stat -c %u /root", root=True
        )
        assert done.out == b"0\n1000\n"


async def test_everything_dies_across_users_without_more_capabilities(bundle, tmp_path) -> None:
    async with contained(bundle, tmp_path, BASE) as here:
        for root in (False, True):
            exec_id = await here.start(
                "setsid sleep 80 & (sleep 80 &); echo up; sleep 80", root=root
            )
            await here.spool.until(partial(_is_up, here.spool, exec_id))
            await here.link.cancel(exec_id, timedelta(0))
            assert (await here.spool.wait(exec_id)).ending is Ending.CANCELLED
        mixed = "setpriv --reuid 1000 --clear-groups setsid sleep 80 & sleep 0.3"
        assert (await here.run(mixed, root=True)).outcome.code == 0
        await eventually(lambda: _inside(here.pid) == 1)


def _is_up(spool: Spool, exec_id: str) -> bool:
    return spool.text(exec_id) == b"up\n"


def _inside(pid: int) -> int:
    """How many processes share a process namespace."""
    namespace = Path(f"/proc/{pid}/ns/pid").readlink()
    count = 0
    for entry in Path("/proc").iterdir():
        try:
            count += entry.name.isdigit() and (entry / "ns/pid").readlink() == namespace
        except OSError:
            continue
    return count


async def test_memory_hog_is_killed_and_named_and_the_supervisor_lives(bundle, tmp_path) -> None:
    async with contained(bundle, tmp_path, BASE, "--memory=96m", "--memory-swap=96m") as here:
        bystander = await here.start("sleep 2; echo fine")
        done = await here.run(argv=(b"python3", b"-c", b"x = bytearray(10**9); print(len(x))"))
        assert done.outcome.ending is Ending.OUT_OF_MEMORY
        done = await here.run("python3 -c 'x = bytearray(10**9)'; exit $?")
        assert done.outcome.ending is Ending.OUT_OF_MEMORY
        done = await here.run("kill -9 $$")
        assert (done.outcome.ending, done.outcome.signal) == (Ending.SIGNALLED, 9)
        assert (await here.spool.wait(bystander)).code == 0
        assert here.losses == []


async def test_fork_bomb_leaves_the_supervisor_in_command(bundle, tmp_path) -> None:
    async with contained(bundle, tmp_path, BASE, "--pids-limit=120") as here:
        bomb = await here.start("f() { while :; do f & done; }; f 2>/dev/null")
        await eventually(lambda: _inside(here.pid) > 100)
        seen = set()
        for _ in range(20):
            done = await here.run("true")
            seen.add((done.outcome.ending, done.outcome.errno))
        assert (Ending.START_FAILED, errno.EAGAIN) in seen
        assert all(error in (0, errno.EAGAIN) for _, error in seen)
        await here.link.cancel(bomb, timedelta(0))
        assert (await here.spool.wait(bomb)).ending is Ending.CANCELLED
        assert (await here.run("echo alive")).out == b"alive\n"
        await eventually(lambda: _inside(here.pid) == 1)
