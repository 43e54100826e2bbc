"""Owns the standard services that every server offers: health checking and reflection."""

from collections.abc import AsyncIterator, Iterable
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2

from workroom.errors import WorkroomError
from workroom.rpc.drain import Drain
from workroom.rpc.handlers import Context

HEALTH = "grpc.health.v1.Health"
REFLECTION = ("grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection")
"""Both versions have the same messages on the wire."""

_Status = health_pb2.HealthCheckResponse


class ServiceUnknown(WorkroomError):
    """Health was asked of a service that this server does not have."""

    code = grpc.StatusCode.NOT_FOUND
    reason = "SERVICE_UNKNOWN"


class Health(health_pb2_grpc.HealthServicer):  # type: ignore[misc]
    """SERVING, for the server ("") and each service, until the drain begins; then NOT_SERVING."""

    def __init__(self, services: Iterable[str], drain: Drain) -> None:
        self._services = frozenset({"", *services})
        self._drain = drain

    def register(self, server: grpc.aio.Server) -> None:
        """Adds the service to `server`."""
        health_pb2_grpc.add_HealthServicer_to_server(self, server)

    async def Check(self, request: Any, context: Context) -> Any:
        """The state at this moment. Raises `ServiceUnknown`."""
        if request.service not in self._services:
            name = request.service
            raise ServiceUnknown(f"there is no service {name}", service=name)
        return _Status(status=self._state(request.service))

    async def Watch(self, request: Any, context: Context) -> None:
        """The state and its one change; ends with `Draining`, so that no watcher delays a stop."""
        await context.write(_Status(status=self._state(request.service)))
        await self._drain.wait()
        await context.write(_Status(status=self._state(request.service)))
        self._drain.check()

    def _state(self, service: str) -> Any:
        if service not in self._services:
            return _Status.SERVICE_UNKNOWN
        return _Status.NOT_SERVING if self._drain.begun else _Status.SERVING


class Reflection(reflection.aio.ReflectionServicer):  # type: ignore[misc]
    """Tells clients such as `grpcurl` the services and messages, in both versions of the protocol.

    Its streams end when the drain begins.
    """

    def __init__(self, services: Iterable[str], drain: Drain) -> None:
        super().__init__([*services, HEALTH, *REFLECTION])
        self._drain = drain

    def register(self, server: grpc.aio.Server) -> None:
        """Adds the services to `server`."""
        handler = grpc.stream_stream_rpc_method_handler(
            self._info,
            request_deserializer=reflection_pb2.ServerReflectionRequest.FromString,
            response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString,
        )
        for service in REFLECTION:
            server.add_registered_method_handlers(service, {"ServerReflectionInfo": handler})

    def _file_containing_symbol(self, request: Any, symbol: str) -> Any:
        """Finds methods and fields too, which the pool knows only by what they belong to."""
        found = super()._file_containing_symbol(request, symbol)
        parent = symbol.rpartition(".")[0]
        if found.HasField("error_response") and parent:
            return super()._file_containing_symbol(request, parent)
        return found

    async def _info(self, requests: AsyncIterator[Any], context: Context) -> None:
        async with self._drain.interrupting():
            async for response in self.ServerReflectionInfo(requests, context):
                await context.write(response)
