"""Containers without a container engine: processes in network namespaces of their own."""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from egress_proxy.capture.namespaces import Namespace, Process, start_ticks

T = TypeVar("T")

_MAIN = "import ctypes,os,sys;ctypes.CDLL(None).unshare(0x40000000);print('.',flush=True);input()"


class Inside:
    """A process in an empty network namespace, and code run there."""

    def __init__(self, child: "subprocess.Popen[bytes]") -> None:
        self._child = child
        self.process = Process(child.pid, start_ticks(child.pid))
        self._namespace = Namespace.of(self.process, ())

    def run(self, work: Callable[[], T]) -> T:
        """Runs `work` in the namespace and waits for it."""
        return self._namespace.inside(work)

    async def do(self, work: Callable[[], T]) -> T:
        """As `run`, while the loop goes on."""
        return await asyncio.to_thread(self.run, work)

    def socket(self, family=socket.AF_INET, kind=socket.SOCK_STREAM) -> socket.socket:
        """A socket that lives in the namespace, with a bound on every wait."""
        made = self.run(lambda: socket.socket(family, kind))
        made.settimeout(5)
        return made

    def kill(self) -> None:
        """Ends the main process."""
        self._child.kill()
        self._child.wait()

    def close(self) -> None:
        self.kill()
        assert self._child.stdin and self._child.stdout
        self._child.stdin.close()
        self._child.stdout.close()
        self._namespace.close()


@contextlib.contextmanager
def inside() -> Iterator[Inside]:
    """A fresh namespace with a main process."""
    child = subprocess.Popen(
        [sys.executable, "-S", "-c", _MAIN], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert child.stdout
    child.stdout.readline()
    made = Inside(child)
    try:
        yield made
    finally:
        made.close()


@contextlib.contextmanager
def helper(path: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """A helper that listens at `path`."""
    process = subprocess.Popen([sys.executable, "-m", "egress_proxy.capture.helper", str(path)])
    try:
        yield process
    finally:
        for child in children(process.pid):
            with contextlib.suppress(ProcessLookupError):
                kill(child)
        process.kill()
        process.wait()


def children(pid: int) -> list[int]:
    """The processes that a process has started."""
    try:
        return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def kill(pid: int) -> None:
    """Ends a process at once."""
    os.kill(pid, signal.SIGKILL)


async def until(condition: Callable[[], object], seconds: float = 10) -> None:
    """Waits until the condition holds."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 (other processes set no events)
            await asyncio.sleep(0.01)


@contextlib.contextmanager
def short_folder() -> Iterator[Path]:
    """A folder whose path is short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="wr-") as name:
        yield Path(name)
