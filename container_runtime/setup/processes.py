"""Owns what set-up does with other processes: bounded commands, a lock between set-ups, /proc."""

import asyncio
import fcntl
import os
import signal
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from container_runtime.setup.errors import SetupBusy

Progress = Callable[[str], None]
"""Receives one line at a time about what set-up is doing."""

KILL_GRACE = timedelta(seconds=20)  # what mmdebstrap needs to undo its mounts
LOCK_POLL = timedelta(milliseconds=100)


@dataclass(frozen=True)
class Finished:
    """How a command ended. `output` is stdout and stderr together; `code` is 124 on timeout."""

    code: int
    output: str

    def tail(self, lines: int = 15) -> str:
        """The last `lines` lines of the output, for an error message."""
        return "\n".join(self.output.strip().splitlines()[-lines:])


async def run(
    *argv: str, timeout: timedelta, environment: Mapping[str, str] | None = None
) -> Finished:
    """Runs `argv` in a session of its own and returns how it ended.

    At the timeout, and when the caller is cancelled, the whole process group gets SIGTERM and,
    after `KILL_GRACE`, SIGKILL. A program that is not there ends with code 127.
    """
    try:
        process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env={**os.environ, **(environment or {})},
            start_new_session=True,
        )
    except OSError as error:
        return Finished(127, f"{argv[0]}: {error.strerror}")
    try:
        async with asyncio.timeout(timeout.total_seconds()):
            output, _ = await process.communicate()
    except TimeoutError:
        await _end(process)
        return Finished(124, f"{argv[0]} did not end within {timeout.total_seconds():.0f} s")
    except BaseException:
        await _end(process)
        raise
    assert process.returncode is not None
    return Finished(process.returncode, output.decode(errors="replace"))


async def _end(process: asyncio.subprocess.Process) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            break
        try:
            async with asyncio.timeout(KILL_GRACE.total_seconds()):
                await process.communicate()  # also drains the pipe, so that it can end
            break
        except TimeoutError:
            continue


@asynccontextmanager
async def locked(path: Path, *, timeout: timedelta, progress: Progress) -> AsyncIterator[None]:
    """Holds the lock file `path`; it is free again when its holder dies, however it dies.

    Raises SetupBusy when another process holds it for all of `timeout`.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        await _take(descriptor, path, timeout, progress)
        yield
    finally:
        os.close(descriptor)


async def _take(descriptor: int, path: Path, timeout: timedelta, progress: Progress) -> None:
    told = False
    try:
        async with asyncio.timeout(timeout.total_seconds()):
            while True:
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    return
                except BlockingIOError:
                    if not told:
                        progress(f"waiting for another set-up to finish ({path})")
                        told = True
                    await asyncio.sleep(LOCK_POLL.total_seconds())
    except TimeoutError:
        raise SetupBusy(
            f"another process has held {path} for {timeout.total_seconds():.0f} s; "
            "see what it is doing (fuser, lsof) or end it, then try again",
            path=str(path),
        ) from None


@dataclass(frozen=True)
class ProcessState:
    """What /proc says of a process. `started` (ticks since boot) tells a reused pid apart."""

    name: str
    zombie: bool
    started: int


def process_state(pid: int) -> ProcessState | None:
    """The process with this pid, or None when there is none."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    name = stat[stat.index("(") + 1 : stat.rindex(")")]
    fields = stat[stat.rindex(")") + 2 :].split()
    return ProcessState(name=name, zombie=fields[0] in "ZX", started=int(fields[19]))
