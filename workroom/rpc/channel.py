"""Owns how a client reaches a server: limits, keepalive, TLS, and what every call carries."""

from collections.abc import Callable, Sequence
from datetime import timedelta
from types import TracebackType
from typing import Any, Self, cast

import grpc

from workroom.errors import WorkroomError
from workroom.rpc.address import UnixAddress, parse_address
from workroom.rpc.auth import AUTHORIZATION
from workroom.rpc.limits import KEEPALIVE, MESSAGE_BYTES, Keepalive, Option, message_options
from workroom.rpc.status import refused_by_library, translate_errors
from workroom.rpc.telemetry import outgoing_metadata
from workroom.rpc.tls import ClientTls

__all__ = ["BadChannel", "open_channel", "translate_errors"]

RECONNECT_FIRST = timedelta(milliseconds=100)
RECONNECT_MOST = timedelta(seconds=2)
"""Pauses between attempts to connect: a restarted service is found again within this time."""

CONNECT_LIMIT = timedelta(seconds=5)
"""How long one attempt may take."""

_Pairs = Sequence[tuple[str, str | bytes]]


class BadChannel(WorkroomError):
    """A channel's settings contradict one another."""

    code = grpc.StatusCode.INVALID_ARGUMENT
    reason = "BAD_CHANNEL"


def open_channel(
    address: str,
    *,
    key: str | None = None,
    tls: ClientTls | None = None,
    message_bytes: int = MESSAGE_BYTES,
    keepalive: Keepalive = KEEPALIVE,
    default_timeout: timedelta | None = None,
) -> grpc.aio.Channel:
    """A channel to `host:port` or `unix:/path`; it connects at the first call.

    Every call carries the request id and trace of the call being served (or new ones), and `key`
    as `authorization: Bearer …`. `default_timeout` is the deadline of unary calls that name none.
    Calls are never replayed: the caller knows which may be.

    Raises `BadAddress`, `UnusablePath`, `BadChannel` (a key that is not printable ASCII, TLS on a
    unix socket) or OSError for a certificate file.
    """
    target = parse_address(address)
    local = isinstance(target, UnixAddress) or target.loopback
    options = [
        *message_options(message_bytes),
        *keepalive.client_options(),
        *_connection_options(),
    ]
    if local:
        options.append(("grpc.enable_http_proxy", 0))
    if isinstance(target, UnixAddress):
        if tls is not None:
            raise BadChannel(f"{target}: a unix socket takes no TLS", address=str(target))
        options.append(("grpc.default_authority", "localhost"))
    if tls is None:
        channel = grpc.aio.insecure_channel(str(target), options=options)
    else:
        if tls.server_name is not None:
            options.append(("grpc.ssl_target_name_override", tls.server_name))
        channel = grpc.aio.secure_channel(str(target), tls.credentials(), options=options)
    return _TaggingChannel(channel, _key_metadata(key), default_timeout)


def _connection_options() -> list[Option]:
    return [
        ("grpc.enable_retries", 0),
        ("grpc.service_config_disable_resolution", 1),
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.initial_reconnect_backoff_ms", int(RECONNECT_FIRST.total_seconds() * 1000)),
        ("grpc.min_reconnect_backoff_ms", int(CONNECT_LIMIT.total_seconds() * 1000)),
        ("grpc.max_reconnect_backoff_ms", int(RECONNECT_MOST.total_seconds() * 1000)),
    ]


def _key_metadata(key: str | None) -> _Pairs:
    if key is None:
        return ()
    if not key or not key.isascii() or not key.isprintable() or " " in key:
        raise BadChannel("a key is one word of printable ASCII")
    return ((AUTHORIZATION, f"Bearer {key}"),)


class _TaggingChannel(grpc.aio.Channel):
    """Adds metadata to each call as it begins.

    The library's client interceptors could, but wrap every streaming call in tasks of their own,
    which lose cancellations and ends of streams; here the call is the library's own object.
    """

    def __init__(
        self, channel: grpc.aio.Channel, key: _Pairs, default_timeout: timedelta | None
    ) -> None:
        self._channel = channel
        self._key = key
        self._timeout = default_timeout.total_seconds() if default_timeout else None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_val: BaseException | None,
        exc_tb: TracebackType | None,
    ) -> None:
        await self._channel.close()

    async def close(self, grace: float | None = None) -> None:
        await self._channel.close(grace)

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        return self._channel.get_state(try_to_connect)

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        await self._channel.wait_for_state_change(last_observed_state)

    async def channel_ready(self) -> None:
        await self._channel.channel_ready()

    def unary_unary(self, *args: Any, **kwargs: Any) -> grpc.aio.UnaryUnaryMultiCallable[Any, Any]:
        begin = self._tagged(self._channel.unary_unary(*args, **kwargs), self._timeout)
        return cast("grpc.aio.UnaryUnaryMultiCallable[Any, Any]", begin)

    def unary_stream(
        self, *args: Any, **kwargs: Any
    ) -> grpc.aio.UnaryStreamMultiCallable[Any, Any]:
        begin = self._tagged(self._channel.unary_stream(*args, **kwargs))
        return cast("grpc.aio.UnaryStreamMultiCallable[Any, Any]", begin)

    def stream_unary(
        self, *args: Any, **kwargs: Any
    ) -> grpc.aio.StreamUnaryMultiCallable[Any, Any]:
        begin = _patient(self._tagged(self._channel.stream_unary(*args, **kwargs)))
        return cast("grpc.aio.StreamUnaryMultiCallable[Any, Any]", begin)

    def stream_stream(
        self, *args: Any, **kwargs: Any
    ) -> grpc.aio.StreamStreamMultiCallable[Any, Any]:
        begin = _patient(self._tagged(self._channel.stream_stream(*args, **kwargs)))
        return cast("grpc.aio.StreamStreamMultiCallable[Any, Any]", begin)

    def _tagged(
        self, begin: Callable[..., Any], default_timeout: float | None = None
    ) -> Callable[..., Any]:
        def call(
            *args: Any, metadata: _Pairs | None = None, timeout: float | None = None, **kwargs: Any
        ) -> Any:
            given = tuple(metadata or ())
            named = {key for key, _ in given}
            added = [pair for pair in (*outgoing_metadata(), *self._key) if pair[0] not in named]
            deadline = default_timeout if timeout is None else timeout
            return begin(*args, metadata=(*given, *added), timeout=deadline, **kwargs)

        return call


def _patient(begin: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        begun = begin(*args, **kwargs)
        begun._cython_call = _PatientCall(begun._cython_call)
        return begun

    return call


class _PatientCall:
    """Waits for the server's status when a write fails because the call has ended.

    The library would put an "Internal error from Core" in its place (or cancel the call, when it
    was the end of writing that failed), although the status is already on its way: the reason why
    the server ended a stream would be lost whenever the client was writing at that moment.
    """

    def __init__(self, call: Any) -> None:
        self._call = call

    def __getattr__(self, name: str) -> Any:
        return getattr(self._call, name)

    def set_internal_error(self, text: str) -> None:
        if refused_by_library(text):
            self._call.set_internal_error(text)

    async def send_receive_close(self) -> None:
        try:
            await self._call.send_receive_close()
        except grpc.aio.InternalError as error:
            if refused_by_library(str(error)):
                raise
