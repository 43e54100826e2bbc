"""Owns which containers are captured: lays capture, takes it up again, and lets it go."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import structlog

from egress_proxy.capture.handover import CaptureUnavailable, Handover
from egress_proxy.capture.namespaces import Captured, Process
from egress_proxy.connection import Tools
from egress_proxy.gateway import Gateway
from egress_proxy.policy import Policy
from egress_proxy.synthetic import KeptNames, Synthetic
from egress_proxy.traffic import Owner
from workroom.errors import WorkroomError

log = structlog.get_logger(__name__)

RETRY_SECONDS = 0.5


class Gateways:
    """The gateways of a node. Use `opened`."""

    def __init__(
        self, handover: Handover, tools: Tools, names: KeptNames, tasks: asyncio.TaskGroup
    ) -> None:
        self._handover = handover
        self._tools = tools
        self._names = names
        self._tasks = tasks
        self._gateways: dict[str, Gateway] = {}
        self._watchers: dict[str, asyncio.Task[None]] = {}

    @classmethod
    @asynccontextmanager
    async def opened(
        cls, handover: Handover, tools: Tools, names: KeptNames
    ) -> AsyncIterator["Gateways"]:
        """Gateways that serve while the body runs. What the helper holds stays with it."""
        async with asyncio.TaskGroup() as tasks:
            made = cls(handover, tools, names, tasks)
            handover.adopting(made._held)
            watcher = tasks.create_task(made._watch_helper())
            try:
                yield made
            finally:
                watcher.cancel()
                for container_id in list(made._gateways):
                    await made._stop(container_id, "proxy_stopped")
                handover.close()

    @property
    def available(self) -> bool:
        """Whether containers can be captured at all."""
        return self._handover.available()

    def has(self, container_id: str) -> bool:
        """Whether the container is captured."""
        return container_id in self._gateways

    async def put(self, owner: Owner, process: Process, policies: Sequence[Policy]) -> None:
        """Captures a container under policies, or puts the captured one under others.

        Errors: `WrongProcess`, `CaptureFailed`, `CaptureUnavailable`, `TrafficLogUnavailable`.
        """
        gateway = self._gateways.get(owner.container_id)
        if gateway is not None and gateway.process == process:
            gateway.update(owner, policies)
            return
        if gateway is not None:
            await self._stop(owner.container_id, "container_restarted")
        known = await self._names.load(owner.container_id)
        captured = await self._handover.capture(owner.container_id, process)
        synthetic = Synthetic(owner.container_id, self._names, known)
        gateway = Gateway(self._tools, captured, process, synthetic, owner, policies)
        gateway.start(self._tasks)
        self._gateways[owner.container_id] = gateway
        self._watchers[owner.container_id] = self._tasks.create_task(
            self._until_dead(owner.container_id, gateway)
        )

    def update(self, owner: Owner, policies: Sequence[Policy]) -> None:
        """Puts a captured container under other policies; others stay as they are."""
        gateway = self._gateways.get(owner.container_id)
        if gateway is not None:
            cut = gateway.update(owner, policies)
            log.info("policy in force", container_id=owner.container_id, cut=cut)

    async def drop(self, container_id: str) -> None:
        """Cuts all that is open, and lets the container go."""
        captured = container_id in self._gateways
        await self._stop(container_id, "detached")
        if captured or self.available:
            try:
                await self._handover.release(container_id)
            except CaptureUnavailable as error:
                log.warning("not released", container_id=container_id, problem=str(error))
        await self._names.forget(container_id)

    async def release_others(self, known: Sequence[str]) -> None:
        """Makes the helper let go of containers that nobody knows any more."""
        if not self.available:
            return
        for container_id in await self._handover.held():
            if container_id not in known:
                await self._handover.release(container_id)

    def cut_all(self, why: str) -> None:
        """Ends everything that is open, of every container."""
        for gateway in self._gateways.values():
            gateway.cut_all(why)

    async def _until_dead(self, container_id: str, gateway: Gateway) -> None:
        await gateway.wait_for_death()
        if self._gateways.get(container_id) is gateway:
            log.info("container ended", container_id=container_id)
            del self._gateways[container_id]
            del self._watchers[container_id]
            await gateway.stop("container_ended")

    async def _stop(self, container_id: str, why: str) -> None:
        gateway = self._gateways.pop(container_id, None)
        watcher = self._watchers.pop(container_id, None)
        if watcher is not None:
            watcher.cancel()
        if gateway is not None:
            await gateway.stop(why)

    def _held(self) -> list[tuple[str, Process, Captured]]:
        return [
            (container_id, gateway.process, gateway.captured)
            for container_id, gateway in list(self._gateways.items())
        ]

    async def _watch_helper(self) -> None:
        """Connects again to a helper that was started again, so that it adopts what we hold."""
        while True:
            if self._gateways and self.available:
                try:
                    await self._handover.watch()
                except WorkroomError as error:
                    log.warning("capture helper away", problem=str(error))
            await asyncio.sleep(RETRY_SECONDS)
