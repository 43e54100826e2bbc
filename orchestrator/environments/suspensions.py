"""Owns hearing from the container runtime which environments sleep."""

from collections.abc import AsyncGenerator
from datetime import timedelta

import grpc

from orchestrator.environments.environments import ENVIRONMENT_LABEL, OWNER, OWNER_LABEL
from orchestrator.runtime_errors import runtime_errors
from workroom.runtime.v1 import containers_pb2 as pb
from workroom.runtime.v1 import containers_pb2_grpc as rpc

CALL_TIME = timedelta(seconds=30)


class Suspensions:
    """The environments whose containers the runtime has put to sleep."""

    def __init__(self, runtime: grpc.aio.Channel) -> None:
        self._containers = rpc.ContainerServiceStub(runtime)

    async def sleeping(self) -> AsyncGenerator[str, None]:
        """Ids of environments: those that sleep already, then each that falls asleep.

        Without an end of its own. Errors: `RuntimeUnavailable`, `EnvironmentUnusable`.
        """
        with runtime_errors():
            events = self._containers.WatchContainerEvents(pb.WatchContainerEventsRequest())
            try:
                for container in await self._asleep():
                    yield container.labels[ENVIRONMENT_LABEL]
                async for answer in events:
                    if answer.event.kind == pb.ContainerEvent.KIND_SUSPENDED:
                        environment_id = await self._asleep_now(answer.event.container_id)
                        if environment_id:
                            yield environment_id
            finally:
                events.cancel()

    async def _asleep(self) -> list[pb.Container]:
        found: list[pb.Container] = []
        token = ""
        while True:
            request = pb.ListContainersRequest(
                page_size=100, page_token=token, labels={OWNER_LABEL: OWNER}
            )
            page = await self._containers.ListContainers(request, timeout=CALL_TIME.total_seconds())
            found += [c for c in page.containers if c.state == pb.Container.STATE_SUSPENDED]
            token = page.next_page_token
            if not token:
                return found

    async def _asleep_now(self, container_id: str) -> str:
        """The environment of a container that sleeps; empty where it is none, or awake again."""
        try:
            answer = await self._containers.GetContainer(
                pb.GetContainerRequest(container_id=container_id),
                timeout=CALL_TIME.total_seconds(),
            )
        except grpc.aio.AioRpcError as failure:
            if failure.code() is grpc.StatusCode.NOT_FOUND:
                return ""
            raise
        container = answer.container
        if container.state != pb.Container.STATE_SUSPENDED:
            return ""
        is_ours = container.labels.get(OWNER_LABEL) == OWNER
        return container.labels.get(ENVIRONMENT_LABEL, "") if is_ours else ""
