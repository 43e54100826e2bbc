"""Translates `ContainerService`."""

from collections.abc import AsyncIterator
from importlib.metadata import PackageNotFoundError, version

import grpc

from container_runtime.containers import page_key
from container_runtime.limits import SPOOL_BYTES_MAX
from container_runtime.records import DEFAULT_IMAGE
from container_runtime.runtime import Runtime
from container_runtime.servicers.context import Context
from container_runtime.servicers.life_messages import event_message, pool_message, stats_message
from container_runtime.servicers.messages import container_message, size_limits_messages
from container_runtime.servicers.requests import container_request, offset
from workroom.pages import page_size, position_of, token_of
from workroom.rpc.drain import Drain
from workroom.runtime.v1 import containers_pb2 as pb
from workroom.runtime.v1 import containers_pb2_grpc as rpc


class ContainerServicer(rpc.ContainerServiceServicer):
    """Containers over gRPC."""

    def __init__(self, runtime: Runtime, drain: Drain) -> None:
        self._runtime = runtime
        self._drain = drain

    def register(self, server: grpc.aio.Server) -> None:
        """Adds this service to a server."""
        rpc.add_ContainerServiceServicer_to_server(self, server)

    async def CreateContainer(
        self, request: pb.CreateContainerRequest, context: Context
    ) -> pb.CreateContainerResponse:
        record = await self._runtime.containers.create(container_request(request))
        return pb.CreateContainerResponse(container=container_message(record))

    async def GetContainer(
        self, request: pb.GetContainerRequest, context: Context
    ) -> pb.GetContainerResponse:
        container = self._runtime.containers.get(request.container_id)
        return pb.GetContainerResponse(container=container_message(container.record))

    async def ListContainers(
        self, request: pb.ListContainersRequest, context: Context
    ) -> pb.ListContainersResponse:
        size = page_size(request.page_size)
        after = (position_of("containers", request.page_token) or b"").decode("utf-8", "replace")
        found = self._runtime.containers.list(dict(request.labels), after, size + 1)
        page = found[:size]
        token = token_of("containers", page_key(page[-1]).encode()) if len(found) > size else ""
        return pb.ListContainersResponse(
            containers=[container_message(record) for record in page], next_page_token=token
        )

    async def DeleteContainer(
        self, request: pb.DeleteContainerRequest, context: Context
    ) -> pb.DeleteContainerResponse:
        await self._runtime.containers.delete(request.container_id)
        return pb.DeleteContainerResponse()

    async def SuspendContainer(
        self, request: pb.SuspendContainerRequest, context: Context
    ) -> pb.SuspendContainerResponse:
        record = await self._runtime.containers.suspend(request.container_id, force=request.force)
        return pb.SuspendContainerResponse(container=container_message(record))

    async def ResumeContainer(
        self, request: pb.ResumeContainerRequest, context: Context
    ) -> pb.ResumeContainerResponse:
        record = await self._runtime.containers.resume(request.container_id)
        return pb.ResumeContainerResponse(container=container_message(record))

    async def GetContainerStats(
        self, request: pb.GetContainerStatsRequest, context: Context
    ) -> pb.GetContainerStatsResponse:
        return stats_message(await self._runtime.usage.read(request.container_id))

    async def WatchContainerEvents(
        self, request: pb.WatchContainerEventsRequest, context: Context
    ) -> AsyncIterator[pb.WatchContainerEventsResponse]:
        events = self._runtime.events
        after = events.last
        if request.HasField("after_sequence"):
            after = offset("after_sequence", request.after_sequence)
        while True:
            async with self._drain.interrupting():
                event = await events.next(after)
            after = event.sequence
            if request.container_id in ("", event.container_id):
                yield pb.WatchContainerEventsResponse(event=event_message(event))

    async def GetCapabilities(
        self, request: pb.GetCapabilitiesRequest, context: Context
    ) -> pb.GetCapabilitiesResponse:
        return pb.GetCapabilitiesResponse(
            node_id=self._runtime.installation.node_id,
            version=_version(),
            sizes=size_limits_messages(self._runtime.sizes),
            default_image=DEFAULT_IMAGE,
            max_spool_bytes=SPOOL_BYTES_MAX,
            max_containers=self._runtime.capacity.live,
            max_suspended=self._runtime.capacity.suspended,
            disk_bound=pb.DiskBound(
                in_force=self._runtime.volumes.in_force, problem=self._runtime.volumes.problem
            ),
            warm_pools=[pool_message(status) for status in self._runtime.pool.status()],
        )


def _version() -> str:
    try:
        return version("workroom")
    except PackageNotFoundError:
        return "0"
