"""Owns an orchestrator in a process of its own, for tests that kill it or pause it."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.orchestrator.service.conftest import Peers
from workroom.client import Client
from workroom.orchestrator.v1 import sessions_pb2 as pb


class Process:
    """`python -m orchestrator` with a home of its own, which can be killed and started again."""

    def __init__(self, peers: Peers, name: str = "home") -> None:
        self._peers = peers
        self._home = peers.home(name)
        self._log = peers.directory / f"{name}.log"
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        settings = self._peers.settings(
            lease_time="2s", log_level="debug", blob_dir=self._peers.directory / "blobs"
        )
        environ = {f"ORCHESTRATOR_{name.upper()}": str(settings[name]) for name in settings}
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "orchestrator",
                env={
                    **os.environ,
                    **environ,
                    "WORKROOM_HOME": str(self._home.root),
                },
                stdout=log,
                stderr=log,
            )

    def logged(self) -> str:
        """All that it has said."""
        return self._log.read_text()

    def send(self, number: signal.Signals) -> None:
        """Send it a signal."""
        assert self._process is not None
        self._process.send_signal(number)

    async def kill(self) -> None:
        assert self._process is not None
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()

    @asynccontextmanager
    async def client(self) -> AsyncIterator[Client]:
        """A client of the process that runs now, once it answers."""
        address = f"unix:{self._home.socket('orchestrator')}"
        async with Client.connect(address) as client:
            await client.sessions.ListSessions(
                pb.ListSessionsRequest(), wait_for_ready=True, timeout=20
            )
            yield client
