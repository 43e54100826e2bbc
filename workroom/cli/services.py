"""The four services as child processes: how each is started, told apart from dead, and stopped."""

import asyncio
import ctypes
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from workroom.errors import WorkroomError
from workroom.paths import Home
from workroom.rpc.channel import open_channel

START_TIMEOUT = timedelta(seconds=30)
STOP_TIMEOUT = timedelta(seconds=20)
LOG_LIMIT_BYTES = 16 * 1024 * 1024
"""A service's log is started anew at its start when it is larger than this."""

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


class ServiceFailed(WorkroomError):
    """A service did not come up; the message has the end of its log."""

    code = grpc.StatusCode.UNAVAILABLE
    reason = "SERVICE_FAILED"


@dataclass(frozen=True)
class Service:
    """One of the four: the Python module that it is, and its socket's name under `run/`."""

    name: str
    module: str

    def address(self, home: Home) -> str:
        return f"unix:{home.socket(self.name)}"


RUNTIME = Service("runtime", "container_runtime")
EGRESS = Service("egress", "egress_proxy")
REVIEWER = Service("reviewer", "reviewer")
ORCHESTRATOR = Service("orchestrator", "orchestrator")
SERVICES: Sequence[Service] = (RUNTIME, EGRESS, REVIEWER, ORCHESTRATOR)
"""In the order in which they are started; they are stopped in the reverse one."""


class Child:
    """A service's process. It is told to stop when the process that started it dies."""

    def __init__(self, service: Service, process: asyncio.subprocess.Process, log: Path) -> None:
        self.service = service
        self.process = process
        self.log = log

    @classmethod
    async def start(cls, service: Service, home: Home, environ: Mapping[str, str]) -> "Child":
        log = home.log / f"{service.name}.log"
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        if log.exists() and log.stat().st_size > LOG_LIMIT_BYTES:
            log.replace(log.with_suffix(".log.1"))
        descriptor = os.open(log, flags, 0o600)
        parent = os.getpid()
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                service.module,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=descriptor,
                stderr=descriptor,
                env=dict(environ),
                start_new_session=True,  # the terminal's Ctrl-C is for the CLI alone
                preexec_fn=lambda: die_with(parent),
            )
        finally:
            os.close(descriptor)
        return cls(service, process, log)

    async def healthy(self, home: Home) -> None:
        """Waits until the service serves. Raises `ServiceFailed` when it ends or takes too long."""
        deadline = time.monotonic() + START_TIMEOUT.total_seconds()
        while self.process.returncode is None and time.monotonic() < deadline:
            if await serving(self.service, home):
                return
            await asyncio.sleep(0.05)
        why = self._own_words() or f"the end of {self.log}:\n{self.log_tail()}"
        raise ServiceFailed(
            f"{self.service.name} did not come up: {why}", service=self.service.name
        )

    def _own_words(self) -> str:
        """What the service said last about why it ends; empty when it said nothing."""
        mark = f"{self.service.module}: "
        said = [line for line in self.log_tail().splitlines() if line.startswith(mark)]
        return said[-1].removeprefix(mark) if said and self.process.returncode is not None else ""

    def log_tail(self, lines: int = 12) -> str:
        """The last lines of the service's log."""
        with self.log.open("rb") as file:
            file.seek(max(0, self.log.stat().st_size - 8192))
            return "\n".join(file.read().decode(errors="replace").splitlines()[-lines:])

    async def stop(self) -> None:
        """TERM, and KILL when that does not end it in time."""
        if self.process.returncode is None:
            self.process.terminate()
        try:
            async with asyncio.timeout(STOP_TIMEOUT.total_seconds()):
                await self.process.wait()
        except TimeoutError:
            self.process.kill()
            await self.process.wait()


async def serving(service: Service, home: Home) -> bool:
    """Whether the service answers a health check within two seconds."""
    if not home.socket(service.name).exists():
        return False
    channel = open_channel(service.address(home))
    try:
        request = health_pb2.HealthCheckRequest()
        response = await health_pb2_grpc.HealthStub(channel).Check(request, timeout=2)
        return bool(response.status == health_pb2.HealthCheckResponse.SERVING)
    except grpc.aio.AioRpcError:
        return False
    finally:
        await channel.close()


def die_with(parent: int) -> None:
    """For a child before exec: asks the kernel for a HUP when the parent dies.

    The kernel hands the child on from thread to thread of a dying parent and signals each time, so
    it must be a signal whose repetition means nothing (prctl(2), PR_SET_PDEATHSIG).
    """
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGHUP)
    if os.getppid() != parent:
        os._exit(1)
