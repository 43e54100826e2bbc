"""Owns how a gRPC server lives: opened on its listeners, served, drained and stopped in bounds."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, cast

import grpc
import structlog

from workroom.errors import WorkroomError
from workroom.rpc.address import UnixAddress
from workroom.rpc.auth import AuthInterceptor
from workroom.rpc.drain import Drain
from workroom.rpc.health import Health, Reflection
from workroom.rpc.interceptors import CallInterceptor, Calls
from workroom.rpc.limits import (
    KEEPALIVE,
    MESSAGE_BYTES,
    Keepalive,
    Option,
    message_options,
    pending_options,
)
from workroom.rpc.listeners import Listener
from workroom.rpc.signals import until_signalled
from workroom.rpc.sockets import claimed
from workroom.rpc.watchdog import watching

__all__ = ["Drain", "Listener", "ServerCrashed", "Serving", "serving", "until_signalled"]

log = structlog.get_logger(__name__)

Register = Callable[[grpc.aio.Server], None]

STOP_MARGIN = timedelta(seconds=5)
"""Past the grace period, how long a stop may take before stacks are logged; twice that ends it."""

_LONG = timedelta(days=1).total_seconds()


class ServerCrashed(WorkroomError):
    """The server ended without being told to."""

    code = grpc.StatusCode.INTERNAL
    reason = "SERVER_CRASHED"


@dataclass(frozen=True)
class Serving:
    """A server that takes calls. `addresses` are those to dial, one per listener, in order."""

    addresses: tuple[str, ...]
    drain: Drain

    @property
    def address(self) -> str:
        """The first listener's."""
        return self.addresses[0]


@asynccontextmanager
async def serving(
    register: Sequence[Register],
    listeners: Listener | Sequence[Listener],
    *,
    services: Sequence[str],
    grace: timedelta = timedelta(seconds=10),
    drain: Drain | None = None,
    interceptors: Sequence[grpc.aio.ServerInterceptor] = (),
    message_bytes: int = MESSAGE_BYTES,
    keepalive: Keepalive = KEEPALIVE,
    stop_margin: timedelta = STOP_MARGIN,
) -> AsyncIterator[Serving]:
    """Serves what `register` adds on every listener, while the body runs.

    `services` are full names (`workroom.runtime.v1.ContainerService`) for health and reflection,
    which come with every server. Servicers whose streams have no end take the same `drain`.
    `interceptors` stand behind our own: they see calls that are already allowed.

    On leaving, health turns NOT_SERVING and the drain begins, calls get `grace` to end and are
    then cancelled; a stop that takes `2 * stop_margin` longer is abandoned, stacks logged. If a
    server ends by itself, the body is cancelled and an ExceptionGroup with `ServerCrashed` raised.

    Raises `InsecureListener`, `BadAddress`, `UnusablePath`, `AddressInUse` or `BindFailed` before
    the body.
    """
    drain = drain or Drain()
    calls = Calls()
    added = [*register, Health(services, drain).register, Reflection(services, drain).register]
    wanted = [listeners] if isinstance(listeners, Listener) else list(listeners)
    servers = [
        _Server(
            listener,
            added,
            [CallInterceptor(drain, calls), AuthInterceptor(listener.verifier), *interceptors],
            [*message_options(message_bytes), *keepalive.server_options(), *pending_options()],
        )
        for listener in wanted
    ]
    with ExitStack() as claims:
        for server in servers:
            server.claim(claims)
        try:
            addresses = tuple([await server.start() for server in servers])
            log.info("serving", addresses=addresses)
            async with _watched(servers):
                yield Serving(addresses, drain)
        finally:
            drain.begin()
            await _stop(servers, calls, grace, stop_margin)


class _RoutedByName:
    """A server whose methods are found by the name that a call brings.

    The library can also wait for each registered method on its own; then every call that comes
    costs one look at each of these waits, which for a few dozen methods is a tenth of a
    millisecond.
    """

    def __init__(self, server: grpc.aio.Server) -> None:
        self._server = server

    def __getattr__(self, name: str) -> Any:
        return getattr(self._server, name)

    def add_registered_method_handlers(self, service: str, handlers: dict[str, Any]) -> None:
        """Adds them as generic ones. Generated code has done so before, which does no harm."""
        found = grpc.method_handlers_generic_handler(service, handlers)
        self._server.add_generic_rpc_handlers((found,))


class _Server:
    """One listener's server. Each has its own, so that its rule of who may call is its own too."""

    def __init__(
        self,
        listener: Listener,
        register: Sequence[Register],
        interceptors: Sequence[grpc.aio.ServerInterceptor],
        options: Sequence[Option],
    ) -> None:
        self._listener = listener
        self._address = listener.parsed()
        self._register = register
        self._interceptors = interceptors
        self._options = [*options, ("grpc.so_reuseport", 0)]
        self._server: grpc.aio.Server | None = None

    def claim(self, claims: ExitStack) -> None:
        """Takes a unix socket's path until `claims` ends."""
        if isinstance(self._address, UnixAddress):
            claims.enter_context(claimed(self._address.path))

    async def start(self) -> str:
        """Listens, and returns the address to dial."""
        server = grpc.aio.server(interceptors=self._interceptors, options=self._options)
        routed = cast(grpc.aio.Server, _RoutedByName(server))
        for register in self._register:
            register(routed)
        try:
            return self._listener.bind(server)
        finally:
            # A server that was never started is never freed; so is started and stopped either way.
            await server.start()
            self._server = server

    async def ended(self) -> None:
        """Waits until the server ends, which nobody asked it to. Raises `ServerCrashed`."""
        assert self._server is not None
        cause: BaseException | None = None
        try:
            # Without a timeout this wait would take the future that `stop` needs with it when it
            # is cancelled, and `stop` would return at once with calls running.
            while await self._server.wait_for_termination(timeout=_LONG):
                pass
        except Exception as error:
            cause = error
        raise ServerCrashed(f"the server on {self._address} ended by itself") from cause

    async def stop(self, grace: timedelta) -> None:
        """Takes no more calls and returns when the last has ended, or was cancelled by `grace`."""
        if self._server is not None:
            await self._server.stop(grace.total_seconds())


@asynccontextmanager
async def _watched(servers: Sequence[_Server]) -> AsyncIterator[None]:
    """Cancels the body when a server ends; the body's own exception comes out as it is."""
    own: BaseException | None = None
    try:
        async with asyncio.TaskGroup() as tasks:
            watchers = [tasks.create_task(server.ended()) for server in servers]
            try:
                yield
            except BaseException as error:
                own = error
                raise
            finally:
                for watcher in watchers:
                    watcher.cancel()
    except BaseExceptionGroup as group:
        if own is not None and group.exceptions == (own,):
            raise own from own.__cause__
        raise


async def _stop(
    servers: Sequence[_Server], calls: Calls, grace: timedelta, margin: timedelta
) -> None:
    log.info("draining", calls=calls.running, grace_s=grace.total_seconds())
    with watching("stopping the server", grace + margin, calls.stacks):
        try:
            async with asyncio.timeout((grace + 2 * margin).total_seconds()):
                async with asyncio.TaskGroup() as tasks:
                    for server in servers:
                        tasks.create_task(server.stop(grace))
                await calls.idle()
        except TimeoutError:
            log.error("gave up waiting for calls to end", calls=calls.running)
            return
    log.info("stopped")
