"""A supervisor as PID 1 of a process namespace of its own, a link to it, and a spool in memory."""

import asyncio
import itertools
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from container_runtime.interpreter import SOCKET_NAME, Bundle, supervisor_command
from container_runtime.link import Link
from container_runtime.model import Offsets, Outcome, StartSpec, Stream


class Spool:
    """Keeps everything. `stall` makes an execution's output wait."""

    def __init__(self) -> None:
        self.bytes: dict[tuple[str, Stream], bytearray] = {}
        self.outcomes: dict[str, Outcome] = {}
        self.stalled: dict[str, asyncio.Event] = {}
        self.delay: Callable[[str], float] | None = None
        self.keep = True
        self.known: set[str] = set()
        self._ended: dict[str, asyncio.Event] = {}
        self._grew = asyncio.Event()
        self.counts: dict[tuple[str, Stream], int] = {}

    def stall(self, exec_id: str) -> asyncio.Event:
        return self.stalled.setdefault(exec_id, asyncio.Event())

    async def output(self, exec_id: str, stream: Stream, offset: int, data: bytes) -> None:
        if exec_id in self.stalled:
            await self.stalled[exec_id].wait()
        if self.delay is not None:
            await asyncio.sleep(self.delay(exec_id))
        key = (exec_id, stream)
        assert offset == self.counts.get(key, 0), "output is not contiguous"
        self.counts[key] = offset + len(data)
        if self.keep:
            self.bytes.setdefault(key, bytearray()).extend(data)
        self._grew.set()

    async def ended(self, exec_id: str, outcome: Outcome) -> None:
        assert exec_id not in self.outcomes, "ended twice"
        self.outcomes[exec_id] = outcome
        self._event(exec_id).set()

    async def resume(self, exec_id: str) -> Offsets | None:
        if exec_id not in self.known:
            return None
        return Offsets(
            self.counts.get((exec_id, Stream.STDOUT), 0),
            self.counts.get((exec_id, Stream.STDERR), 0),
        )

    def _event(self, exec_id: str) -> asyncio.Event:
        return self._ended.setdefault(exec_id, asyncio.Event())

    async def wait(self, exec_id: str, seconds: float = 15) -> Outcome:
        async with asyncio.timeout(seconds):
            await self._event(exec_id).wait()
        return self.outcomes[exec_id]

    def text(self, exec_id: str, stream: Stream = Stream.STDOUT) -> bytes:
        return bytes(self.bytes.get((exec_id, stream), b""))

    async def until(self, condition: Callable[[], bool], seconds: float = 10) -> None:
        """Wait until output makes a condition true."""
        async with asyncio.timeout(seconds):
            while not condition():
                self._grew.clear()
                await self._grew.wait()


@dataclass
class Done:
    """A finished command."""

    outcome: Outcome
    out: bytes
    err: bytes


@dataclass
class Box:
    """What a test has in hand."""

    link: Link
    spool: Spool
    directory: Path
    pid: int
    tasks: asyncio.TaskGroup
    process: asyncio.subprocess.Process
    losses: list[str] = field(default_factory=list)
    _ids: Any = field(default_factory=itertools.count)

    def spec(self, script: str | bytes | None = None, **how: Any) -> StartSpec:
        how.setdefault("exec_id", f"exec_{next(self._ids)}")
        how.setdefault("cwd", b"/")
        if isinstance(script, str):
            script = script.encode()
        return StartSpec(script=script, **how)

    async def start(self, script: str | bytes | None = None, **how: Any) -> str:
        spec = self.spec(script, **how)
        self.spool.known.add(spec.exec_id)
        await self.link.start(spec)
        return spec.exec_id

    async def run(
        self, script: str | bytes | None = None, *, seconds: float = 15, **how: Any
    ) -> Done:
        exec_id = await self.start(script, **how)
        outcome = await self.spool.wait(exec_id, seconds)
        return Done(outcome, self.spool.text(exec_id), self.spool.text(exec_id, Stream.STDERR))

    async def restart_host(self, *, crash_spool: bool = False) -> None:
        """Close the link and open a new one, as a new process of the host would."""
        await self.link.close()
        self.link = self._new_link()

    def _new_link(self) -> Link:
        return Link(
            self.directory,
            self.spool,
            self.tasks,
            container_id="ctr_test",
            on_lost=lambda: self.losses.append("lost"),
        )

    async def come_back(self) -> None:
        """The new host's link: knows the process from the engine, and listens."""
        self.link.expect(self.pid)
        await self.link.open()
        await self.link.ready()

    def break_connection(self) -> None:
        self.link._attachment.break_connection()

    def memory_kib(self, kind: str = "Pss") -> int:
        """The supervisor's memory."""
        for line in Path(f"/proc/{self.pid}/smaps_rollup").read_text().splitlines():
            if line.startswith(f"{kind}:"):
                return int(line.split()[1])
        raise AssertionError(kind)


def processes(marker: str) -> list[int]:
    """The live processes on this machine whose command line holds a marker."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            words = (entry / "cmdline").read_bytes()
        except OSError:
            continue
        if marker.encode() in words:
            found.append(int(entry.name))
    return found


async def eventually(condition: Callable[[], bool], seconds: float = 10) -> None:
    """Wait until something outside this loop becomes true."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 (nobody tells us)
            await asyncio.sleep(0.005)


@asynccontextmanager
async def supervised(bundle: Bundle, directory: Path) -> AsyncIterator[Box]:
    """A running, connected supervisor."""
    spool = Spool()
    link_directory = directory / "link"
    async with asyncio.TaskGroup() as tasks:
        losses: list[str] = []
        link = Link(
            link_directory,
            spool,
            tasks,
            container_id="ctr_test",
            on_lost=lambda: losses.append("lost"),
        )
        await link.open()
        command = supervisor_command(
            bundle, root=str(bundle.directory), socket=str(link_directory / SOCKET_NAME)
        )
        process = await asyncio.create_subprocess_exec(
            *("unshare", "--pid", "--fork", "--mount-proc", "--kill-child"), *command
        )
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        try:
            pids: list[str] = []

            def born() -> bool:
                pids.extend(children.read_text().split())
                return bool(pids)

            await eventually(born)
            pid = int(pids[0])
            link.expect(pid)
            await link.ready()
            box = Box(link, spool, link_directory, pid, tasks, process, losses)
            try:
                yield box
            finally:
                link = box.link
        finally:
            await link.close()
            if process.returncode is None:
                process.kill()
            await process.wait()
