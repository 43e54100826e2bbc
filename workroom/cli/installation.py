"""One installation on this machine: whether it is up, starting it, keeping it up, stopping it.

Two lock files under `run/` are the whole state. `up.lock` is held, and has the process id of, the
one process that runs the services. `users.lock` is shared by every command that uses them; an
installation that was started only for such commands stops when nobody holds it any more. Locks
are the kernel's, so that no crash leaves one behind.
"""

import asyncio
import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import grpc

from workroom.cli.services import ORCHESTRATOR, ServiceFailed, die_with, serving
from workroom.errors import WorkroomError
from workroom.paths import Home

POLL_SECONDS = 0.1
READY_TIMEOUT = timedelta(seconds=60)
STOP_TIMEOUT = timedelta(seconds=60)


class AlreadyUp(WorkroomError):
    """The installation is up already."""

    code = grpc.StatusCode.ALREADY_EXISTS
    reason = "ALREADY_UP"


class NotUp(WorkroomError):
    """The installation is not up."""

    code = grpc.StatusCode.FAILED_PRECONDITION
    reason = "NOT_UP"


class SetUpFailed(WorkroomError):
    """The engine or the image could not be provided; the step has said why."""

    code = grpc.StatusCode.FAILED_PRECONDITION
    reason = "SET_UP_FAILED"


@dataclass(frozen=True)
class Owner:
    """The process that keeps an installation up, and whether only for as long as it is used."""

    pid: int
    until_unused: bool


class Installation:
    """The installation whose data are under `home`."""

    def __init__(self, home: Home) -> None:
        self.home = home
        self._up_lock = home.run / "up.lock"
        self._users_lock = home.run / "users.lock"

    def owner(self) -> Owner | None:
        """The process that keeps the installation up; None when it is down."""
        with _opened(self._up_lock) as lock:
            if _try_lock(lock, fcntl.LOCK_SH):
                return None
            words = os.pread(lock, 64, 0).decode().split()
        return (
            Owner(pid=int(words[0]), until_unused=words[1:] == ["until-unused"]) if words else None
        )

    @contextmanager
    def owned(self, *, until_unused: bool) -> Iterator[None]:
        """Makes this process the one that keeps the installation up."""
        with _opened(self._up_lock) as lock:
            deadline = time.monotonic() + 1  # somebody may just be looking, under a shared lock
            while not _try_lock(lock, fcntl.LOCK_EX):
                if time.monotonic() > deadline:
                    pid = (os.pread(lock, 64, 0).decode().split() or ["unknown"])[0]
                    raise AlreadyUp(
                        f"this installation is up already, as process {pid}; "
                        "`workroom status` shows it, `workroom down` stops it",
                        pid=pid,
                    )
                time.sleep(POLL_SECONDS / 10)
            os.ftruncate(lock, 0)
            mode = " until-unused" if until_unused else ""
            os.pwrite(lock, f"{os.getpid()}{mode}\n".encode(), 0)
            try:
                yield
            finally:
                os.ftruncate(lock, 0)

    @contextmanager
    def used(self) -> Iterator[None]:
        """Counts this process among the users for as long as the block lasts."""
        with _opened(self._users_lock) as lock:
            deadline = time.monotonic() + STOP_TIMEOUT.total_seconds()
            while not _try_lock(lock, fcntl.LOCK_SH):
                if time.monotonic() > deadline:
                    raise NotUp("an installation that is stopping did not end in time")
                time.sleep(POLL_SECONDS)
            yield

    @contextmanager
    def unused(self) -> Iterator[bool]:
        """Whether nobody uses the installation; while the block lasts, nobody can begin to."""
        with _opened(self._users_lock) as lock:
            yield _try_lock(lock, fcntl.LOCK_EX)

    async def set_up(self) -> None:
        """Provides the container engine and the image, telling on stderr what it does."""
        parent = os.getpid()
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "container_runtime.setup", "all"),
            stdin=subprocess.DEVNULL,
            preexec_fn=lambda: die_with(parent),
        )
        try:
            code = await process.wait()
        except asyncio.CancelledError:
            process.terminate()
            await process.wait()
            raise
        if code != 0:
            raise SetUpFailed("the machine could not be set up; the reason is above")

    async def ensure_up(self, environ: Mapping[str, str]) -> None:
        """Starts the installation for its users when it is down; waits until it answers."""
        process = None
        if self.owner() is None:
            process = self.spawn(["--until-unused"], environ)
        await self.ready(process)

    def spawn(self, options: Sequence[str], environ: Mapping[str, str]) -> subprocess.Popen[bytes]:
        """Starts a process of its own that keeps the installation up."""
        log = os.open(self.home.log / "up.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            return subprocess.Popen(
                [sys.executable, "-m", "workroom.cli", "up", "--no-setup", *options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=dict(environ),
                start_new_session=True,
            )
        finally:
            os.close(log)

    async def ready(self, process: subprocess.Popen[bytes] | None) -> None:
        """Waits until all services answer. Raises `ServiceFailed` when that cannot be any more."""
        deadline = time.monotonic() + READY_TIMEOUT.total_seconds()
        while time.monotonic() < deadline:
            if await serving(ORCHESTRATOR, self.home):
                return
            if process is not None and process.poll() is not None and self.owner() is None:
                break
            await asyncio.sleep(POLL_SECONDS)
        raise ServiceFailed(f"the services did not come up:\n{self._up_log()}")

    def _up_log(self) -> str:
        """Why the process that keeps the services up has ended; the end of its log otherwise."""
        text = (self.home.log / "up.log").read_text(errors="replace")
        _, error, why = text.rpartition("error: ")
        return (why if error else text[-4000:]).strip()

    async def left(self) -> None:
        """After a user has left: waits for the end of what was started only for its users.

        Answers at once when others still use it, or when it stays up by itself.
        """
        deadline = time.monotonic() + STOP_TIMEOUT.total_seconds()
        while time.monotonic() < deadline:
            owner = self.owner()
            if owner is None or not owner.until_unused or self._used_by_others():
                return
            await asyncio.sleep(POLL_SECONDS)

    def _used_by_others(self) -> bool:
        with _opened(self._users_lock) as lock:
            stopping = not _try_lock(lock, fcntl.LOCK_SH)
            return not stopping and not _try_lock(lock, fcntl.LOCK_EX)

    async def down(self) -> int:
        """Stops the installation and answers with the process that kept it up."""
        owner = self.owner()
        if owner is None:
            raise NotUp("this installation is not up; `workroom up` starts it")
        os.kill(owner.pid, signal.SIGTERM)
        deadline = time.monotonic() + STOP_TIMEOUT.total_seconds()
        while self.owner() == owner:
            if time.monotonic() > deadline:
                seconds = STOP_TIMEOUT.total_seconds()
                raise NotUp(f"process {owner.pid} did not stop in {seconds:.0f} s")
            await asyncio.sleep(POLL_SECONDS)
        return owner.pid


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
