"""An installation under test: its own home, settings and temporary folder, and what is left of it.

Everything is below one short folder (sockets' paths are bounded), so that whatever a run leaves
behind can be told from what others on the machine do.
"""

import asyncio
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiodocker

from container_runtime.setup.answering import engine_socket
from workroom.client import Client

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = ("WORKROOM_", "ORCHESTRATOR_", "RUNTIME_", "REVIEWER_", "EGRESS_")
PATIENCE = 60.0
SETTLE = 30.0
"""Seconds within which everything has to be gone."""


@dataclass(frozen=True)
class Done:
    """A command of ours that has ended."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[dict[str, Any]]:
        """Its output, which has to be JSON in every line."""
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def result(self) -> dict[str, Any]:
        """The last line of `run --json`."""
        *events, last = self.lines
        assert list(last) == ["result"] and not any("result" in event for event in events)
        result: dict[str, Any] = last["result"]
        return result


def _heed_interrupts() -> None:
    """Undoes what a shell does to what it starts in the background: there, Ctrl-C is ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Place:
    """A home that nobody else uses."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.home = root / "h"
        self.temporary = root / "t"
        self.temporary.mkdir()
        foreign = {k: v for k, v in os.environ.items() if not k.startswith(SETTINGS)}
        self.environ = {
            **foreign,
            "WORKROOM_HOME": str(self.home),
            "XDG_CONFIG_HOME": str(root / "c"),
            "ORCHESTRATOR_ADDRESS": "127.0.0.1:0",
            "TMPDIR": str(self.temporary),
            "PYTHONPATH": str(ROOT),
        }

    async def start(self, *words: str | Path, **extra: str) -> asyncio.subprocess.Process:
        """Starts `workroom …` in a session of its own, as a terminal would."""
        return await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "workroom.cli"),
            *(str(word) for word in words),
            env={**self.environ, **extra},
            cwd=self.root,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            limit=2**24,
            start_new_session=True,
            preexec_fn=_heed_interrupts,
        )

    async def start_as(self, uid: int, *words: str, **extra: str) -> asyncio.subprocess.Process:
        """Starts `workroom …` as another user, who may still read what only root can."""
        reading = ("--inh-caps", "+dac_read_search", "--ambient-caps", "+dac_read_search")
        return await asyncio.create_subprocess_exec(
            *("setpriv", "--reuid", str(uid), "--clear-groups", *reading),
            *(sys.executable, "-m", "workroom.cli", *words),
            env={**self.environ, "HOME": str(self.root), **extra},
            cwd=self.root,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )

    async def workroom(self, *words: str | Path, within: float = PATIENCE, **extra: str) -> Done:
        """Runs `workroom …` to its end."""
        process = await self.start(*words, **extra)
        return await ended(process, within)

    async def up(self, **extra: str) -> None:
        done = await ended(await self.start("up", "--detach", "--no-setup", **extra))
        assert done.code == 0, done.err

    async def status(self) -> dict[str, Any]:
        """What `status --json` says."""
        (line,) = (await self.workroom("status", "--json")).lines
        return line

    async def delete_session(self, session_id: str) -> None:
        """As its owner does."""
        async with Client.connect(f"unix:{self.socket('orchestrator')}") as client:
            await client.remove(session_id)

    def tcp_address(self) -> str:
        """Where the orchestrator listened last, for callers with a key."""
        lines = (self.home / "log" / "orchestrator.log").read_text().splitlines()
        serving = [json.loads(line) for line in lines if '"event": "serving"' in line]
        return str(serving[-1]["addresses"][1])

    def socket(self, service: str) -> Path:
        return self.home / "run" / f"{service}.sock"

    async def containers(self) -> list[str]:
        """The ids of this installation's containers, however they are."""
        try:
            installation = (self.home / "installation_id").read_text().strip()
        except OSError:
            return []
        label = f"workroom.installation={installation}"
        async with aiodocker.Docker(url=f"unix://{engine_socket()}") as engine:
            found = await engine.containers.list(all=True, filters=json.dumps({"label": [label]}))
        return [container.id for container in found]

    def processes(self) -> dict[int, str]:
        """The processes that work for this home: id and command line."""
        return dict(_processes_with(f"WORKROOM_HOME={self.home}".encode()))

    def service_pid(self, module: str) -> int:
        """The process of a service."""
        (pid,) = (pid for pid, line in self.processes().items() if line.endswith(f" -m {module}"))
        return pid

    def sockets(self) -> list[str]:
        return [str(path) for path in paths_below(self.root) if path.is_socket()]

    def mounts(self) -> list[str]:
        table = Path("/proc/self/mounts").read_text().splitlines()
        return [where for line in table if (where := line.split()[1]).startswith(f"{self.root}/")]

    def temporary_files(self) -> list[str]:
        return [str(path) for path in paths_below(self.temporary)]

    async def remains(self) -> list[str]:
        """All that is there although nothing runs."""
        processes = [f"process {pid}: {line}" for pid, line in self.processes().items()]
        return [
            *processes,
            *(f"container {container}" for container in await self.containers()),
            *(f"socket {path}" for path in self.sockets()),
            *(f"mount {path}" for path in self.mounts()),
            *(f"temporary file {path}" for path in self.temporary_files()),
        ]

    async def settled(self, within: float = SETTLE) -> None:
        """Waits until nothing of ours remains."""
        remains: list[str] = []

        async def clean() -> bool:
            remains[:] = await self.remains()
            return not remains

        with suppress(TimeoutError):
            await until(clean, within)
        if remains:
            raise AssertionError("still there: " + "; ".join(remains))

    async def remove(self) -> None:
        """Ends and removes whatever is there."""
        for pid in self.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        async with aiodocker.Docker(url=f"unix://{engine_socket()}") as engine:
            for container in await self.containers():
                await engine.containers.container(container).delete(force=True)
        for mount in self.mounts():
            await (await asyncio.create_subprocess_exec("umount", mount)).wait()
        shutil.rmtree(self.root, ignore_errors=True)


@asynccontextmanager
async def new_place() -> AsyncIterator[Place]:
    """A place that must be as good as empty in the end."""
    place = Place(Path(tempfile.mkdtemp(prefix="wr-", dir="/tmp")))
    try:
        yield place
        if place.processes():
            await place.workroom("down")
        await place.settled()
    finally:
        await place.remove()


async def ended(process: asyncio.subprocess.Process, within: float = PATIENCE) -> Done:
    """Waits for the end of a command of ours."""
    try:
        async with asyncio.timeout(within):
            out, err = await process.communicate()
    except TimeoutError:
        process.kill()
        out, err = await process.communicate()
        raise AssertionError(f"not over in {within} s: {out.decode()} {err.decode()}") from None
    assert process.returncode is not None
    return Done(process.returncode, out.decode(), err.decode())


async def seen(
    process: asyncio.subprocess.Process, text: str, within: float = PATIENCE
) -> list[str]:
    """Reads a command's output up to a line with `text`, and returns all these lines."""
    assert process.stdout is not None
    lines = []
    async with asyncio.timeout(within):
        while line := (await process.stdout.readline()).decode():
            lines.append(line)
            if text in line:
                return lines
    assert process.stderr is not None
    raise AssertionError(f"ended without {text!r}: {(await process.stderr.read()).decode()}")


def paths_below(folder: Path) -> Iterator[Path]:
    """All that is there, while others make and remove it: `rglob` fails when a folder goes."""
    for parent, folders, files in os.walk(folder):
        yield from (Path(parent, name) for name in (*folders, *files))


async def until(
    condition: Callable[[], Awaitable[bool]], within: float = PATIENCE, every: float = 0.05
) -> None:
    """Waits for a condition. Raises TimeoutError."""
    deadline = time.monotonic() + within
    while not await condition():
        if time.monotonic() > deadline:
            raise TimeoutError
        await asyncio.sleep(every)


def script(place: Place, text: str, name: str = "script.yaml") -> Path:
    """Writes a script of a model's answers."""
    path = place.root / name
    path.write_text(text)
    return path


def _processes_with(variable: bytes) -> Iterator[tuple[int, str]]:
    for folder in Path("/proc").iterdir():
        if not folder.name.isdecimal():
            continue
        try:
            if variable in (folder / "environ").read_bytes().split(b"\0"):
                line = (
                    (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                )
                if line:
                    yield int(folder.name), line.strip()
        except OSError:
            continue
