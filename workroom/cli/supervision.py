"""Keeps the four services of an installation running in one process until it is told to stop."""

import asyncio
import signal
import time
from collections import deque
from collections.abc import Mapping
from contextlib import AsyncExitStack, ExitStack
from datetime import timedelta

import structlog

from workroom.cli.installation import Installation
from workroom.cli.services import ORCHESTRATOR, SERVICES, Child, Service, ServiceFailed
from workroom.cli.uses import clear_dead
from workroom.client import Client
from workroom.errors import WorkroomError
from workroom.paths import Home

UNUSED_POLL_SECONDS = 0.25
CLEAR_POLL_SECONDS = 1.0
"""How often is looked for commands that have died."""

RESTARTS = 5
RESTART_WINDOW = timedelta(minutes=1)
"""A service that dies more often than this in that time takes the installation down."""

log = structlog.get_logger("up")


class Supervision:
    """The services of one installation, each restarted when it dies."""

    def __init__(self, home: Home, environ: Mapping[str, str]) -> None:
        self._home = home
        self._environ = {**environ, "WORKROOM_HOME": str(home.root)}
        self._clearing = asyncio.Lock()

    async def run(self, installation: Installation, *, until_unused: bool) -> None:
        """Starts the services; stops them at a signal, or when nobody uses them any more.

        Raises `ServiceFailed` when one does not come up, or dies again and again.
        """
        # `users` is left last: whoever comes while we stop waits until we are down altogether.
        with ExitStack() as users, installation.owned(until_unused=until_unused):
            async with AsyncExitStack() as stack:
                stopped = _on_signals(stack)
                keepers = await self._start(stack)
                log.info("up", home=str(self._home.root))
                async with asyncio.TaskGroup() as tasks:
                    running = [tasks.create_task(keeper.keep()) for keeper in keepers]
                    running.append(tasks.create_task(self._clear_forever()))
                    if until_unused:
                        await _until_unused(installation, stopped, users)
                        await self._clear()
                    else:
                        await stopped.wait()
                    log.info("stopping")
                    for task in running:
                        task.cancel()

    async def _start(self, stack: AsyncExitStack) -> list["Keeper"]:
        """Starts those that the orchestrator calls at the same time, then the orchestrator."""
        keepers = [Keeper(service, self._home, self._environ) for service in SERVICES]
        for keeper in keepers:
            stack.push_async_callback(keeper.stop)  # in reverse order; also when a start fails
        *called, orchestrator = keepers
        async with asyncio.TaskGroup() as starting:
            for keeper in called:
                starting.create_task(keeper.start())
        await orchestrator.start()
        return keepers

    async def _clear_forever(self) -> None:
        while True:
            await self._clear()
            await asyncio.sleep(CLEAR_POLL_SECONDS)

    async def _clear(self) -> None:
        """Deletes what commands made that were killed before they could delete it."""
        try:
            async with (
                self._clearing,
                Client.connect(ORCHESTRATOR.address(self._home)) as client,
            ):
                count = await clear_dead(self._home, client)
        except WorkroomError as error:
            log.warning("a dead command is not cleared away yet", error=str(error))
        else:
            if count:
                log.info("cleared away after commands that died", count=count)


class Keeper:
    """One service: its process now, and the restarts of the last minute."""

    def __init__(self, service: Service, home: Home, environ: Mapping[str, str]) -> None:
        self._service = service
        self._home = home
        self._environ = environ
        self._child: Child | None = None
        self._restarts: deque[float] = deque(maxlen=RESTARTS)

    async def start(self) -> None:
        self._child = await Child.start(self._service, self._home, self._environ)
        await self._child.healthy(self._home)

    async def keep(self) -> None:
        """Restarts the service whenever it dies; never returns.

        Raises `ServiceFailed` when it dies too often, or lives and does not come to answer.
        """
        while True:
            child = self._child
            assert child is not None
            code = await child.process.wait()
            log.warning("service died", service=self._service.name, code=code)
            self._count_death(child)
            self._child = await Child.start(self._service, self._home, self._environ)
            try:
                await self._child.healthy(self._home)
            except ServiceFailed:
                if self._child.process.returncode is None:
                    raise
                continue  # it died again before it answered
            log.info("service restarted", service=self._service.name)

    def _count_death(self, child: Child) -> None:
        now = time.monotonic()
        full = len(self._restarts) == RESTARTS
        if full and now - self._restarts[0] < RESTART_WINDOW.total_seconds():
            raise ServiceFailed(
                f"{self._service.name} died {RESTARTS + 1} times within a minute; the end of "
                f"{child.log}:\n{child.log_tail()}",
                service=self._service.name,
            )
        self._restarts.append(now)

    async def stop(self) -> None:
        """Stops the service; the socket of one that was killed is removed in its place."""
        if self._child is not None:
            await self._child.stop()
            if self._child.process.returncode != 0:
                self._home.socket(self._service.name).unlink(missing_ok=True)


async def _until_unused(
    installation: Installation, stopped: asyncio.Event, users: ExitStack
) -> None:
    """Returns when told to stop, or when nobody uses the installation and nobody can begin to."""
    while not stopped.is_set():
        with ExitStack() as attempt:
            if attempt.enter_context(installation.unused()):
                users.push(attempt.pop_all())
                return
        await asyncio.sleep(UNUSED_POLL_SECONDS)


def _on_signals(stack: AsyncExitStack) -> asyncio.Event:
    """An event that TERM, INT and HUP set for as long as the stack is open."""
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, stopped.set)
        stack.callback(loop.remove_signal_handler, number)
    return stopped
