"""Owns one connection out of a container: whom it is for, whether it may, and its bytes' way."""

import asyncio
import socket
import struct
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import structlog

from egress_proxy import http1, tls
from egress_proxy.dialling import DialFailed, Dialler, DialRefused
from egress_proxy.limits import Limits
from egress_proxy.names import Address, Host, shown
from egress_proxy.policy import Decision, Effect, Request
from egress_proxy.splicing import Pipes, readable, relay
from egress_proxy.traffic import Attempt, Ending, Kind, Owner, Recorder, TrafficLogUnavailable

log = structlog.get_logger(__name__)

WEB_PORTS = {80: "http", 443: "tls"}
"""Where nothing but these is spoken: what looks otherwise wants to be mistaken for it."""
LINGER_SECONDS = 1.0
_RESET = struct.pack("ii", 1, 0)


@dataclass(frozen=True)
class Tools:
    """What every connection works with."""

    dialler: Dialler
    recorder: Recorder
    pipes: Pipes
    limits: Limits
    serve_http: "Callable[[Connection, Destination | None], Awaitable[None]]"
    """Serves plain HTTP, within a CONNECT to the destination if one is given."""


class Rules(Protocol):
    """What the container's policy says now."""

    @property
    def owner(self) -> Owner: ...

    def decide(self, request: Request) -> Decision: ...


@dataclass(frozen=True)
class Destination:
    """Where a program dialled: an address, and the name that the address was made up for."""

    address: Address
    port: int
    name: Host | None
    """By what it is known; the address itself, unless that is one of ours."""
    certain: bool = False
    """Whether the program has named it: any other name that it gives must be the same."""


@dataclass(frozen=True)
class Sniffed:
    """What a client said first. `problem` is a fixed word where that is refused."""

    protocol: str
    hello: tls.Hello | None = None
    problem: str = ""


class Connection:
    """A client's socket, and whatever becomes of it. `run` serves it to its end."""

    def __init__(
        self, tools: Tools, rules: Rules, client: socket.socket, destination: Destination
    ) -> None:
        self.tools = tools
        self.rules = rules
        self.client = client
        self.destination = destination
        self.request: Request | None = None
        """What is open, and is judged again when the policy changes."""
        self.sent = 0
        self.received = 0
        self.started = self.active = time.monotonic()
        self.ending = "closed"
        self._task: asyncio.Task[None] | None = None
        self._cut = False
        self.server: socket.socket | None = None

    async def run(self) -> None:
        """Serves the client. Raises nothing but cancellation that is not `cut`'s."""
        self._task = asyncio.current_task()
        try:
            sniffed = await self._sniff()
            if sniffed.protocol == "http" and not sniffed.problem:
                await self.tools.serve_http(self, None)
            else:
                await self.tunnel(self.destination, sniffed)
        except asyncio.CancelledError:
            self.reset()
            if not self._cut:
                raise
        except TrafficLogUnavailable:
            self.reset()
        except OSError:
            self.reset()
        except Exception:
            log.exception("connection failed")
            self.reset()
        finally:
            self.client.close()

    def cut(self, why: str) -> None:
        """Ends it at once, both ways."""
        self._cut = True
        self.ending = why
        if self._task is not None:
            self._task.cancel()

    def reset(self) -> None:
        """Makes both sides hear of a failure when their sockets are closed."""
        for each in (self.client, self.server):
            if each is not None and each.fileno() >= 0:
                each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)

    def count_sent(self, count: int) -> None:
        """Bytes came from the container."""
        self.sent += count
        self.active = time.monotonic()

    def count_received(self, count: int) -> None:
        """Bytes went to the container."""
        self.received += count
        self.active = time.monotonic()

    def attempt(
        self, kind: Kind, decision: Decision, protocol: str, host: str, port: int, **more: str
    ) -> Attempt:
        """What is recorded of this connection."""
        requested = str(self.destination.address)
        return Attempt(
            self.rules.owner, kind, decision, protocol, host, port, requested, **more
        )  # fmt: skip

    async def sniff_inside(self, destination: Destination) -> Sniffed:
        """What the client says next, within a tunnel to `destination`."""
        return await self._sniff(destination)

    async def tunnel(self, destination: Destination, sniffed: Sniffed) -> None:
        """Passes all through to whom the client named, if it may be reached."""
        host, problem = _whom(destination, sniffed)
        port, protocol = destination.port, sniffed.protocol
        if problem:
            decision = Decision(Effect.DENY, "built-in", problem)
            await self._deny(decision, protocol, host, port)
            return
        assert host is not None
        request = Request(host, port)
        decision = self.rules.decide(request)
        if not decision.allowed:
            await self._deny(decision, protocol, host, port)
            return
        self.request = request
        try:
            addresses = await self.tools.dialler.addresses(host, port)
        except DialRefused as error:
            await self._deny(Decision(Effect.DENY, "address", str(error)), protocol, host, port)
            return
        except DialFailed as error:
            await self._fail(decision, protocol, host, str(error))
            return
        await self._pass(decision, protocol, host, addresses)

    async def _pass(
        self, decision: Decision, protocol: str, host: Host, addresses: Sequence[Address]
    ) -> None:
        assert self.request is not None
        try:
            server, address = await self.tools.dialler.connect(addresses, self.request.port)
        except DialFailed as error:
            await self._fail(decision, protocol, host, str(error))
            return
        self.server = server
        number = None
        self.ending = "reset"
        try:
            attempt = self.attempt(
                Kind.CONNECTION, decision, protocol, shown(host), self.request.port,
                dialled_address=str(address),
            )  # fmt: skip
            number = await self.tools.recorder.begin(attempt)
            await relay(self.client, server, self.tools.pipes, self.count_sent, self.count_received)
            self.ending = "closed"
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError) and not self._cut:
                self.ending = "proxy_stopped"
            self.reset()
            raise
        finally:
            server.close()
            if number is not None:
                ending = Ending(self.ending, self.sent, self.received)
                self.tools.recorder.end(number, ending)

    async def _deny(self, decision: Decision, protocol: str, host: Host | None, port: int) -> None:
        name = shown(host) if host is not None else ""
        attempt = self.attempt(Kind.CONNECTION, decision, protocol, name, port)
        await self.tools.recorder.note(attempt, Ending("denied"))
        await self._refuse(protocol, tls.ACCESS_DENIED)

    async def _fail(self, decision: Decision, protocol: str, host: Host, why: str) -> None:
        """Tells the client that the other side was not reached."""
        port = self.destination.port if self.request is None else self.request.port
        attempt = self.attempt(Kind.CONNECTION, decision, protocol, shown(host), port)
        await self.tools.recorder.note(attempt, Ending(why))
        await self._refuse(protocol, tls.INTERNAL_ERROR)

    async def _refuse(self, protocol: str, description: int) -> None:
        if protocol == "tls":
            await self.say_last(tls.alert(description))
        else:
            self.reset()

    async def say_last(self, content: bytes) -> None:
        """Sends the client a last word, and waits a little until it has read it."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(LINGER_SECONDS):
                await loop.sock_sendall(self.client, content)
                self.client.shutdown(socket.SHUT_WR)
                while await loop.sock_recv(self.client, 65536):
                    pass
        except (TimeoutError, OSError):
            pass

    async def _sniff(self, destination: Destination | None = None) -> Sniffed:
        """What the client says first, without taking it off the socket."""
        destination = destination or self.destination
        web = WEB_PORTS.get(destination.port)
        limit = self.tools.limits.hello if web else self.tools.limits.first_byte
        data = b""
        try:
            async with asyncio.timeout(limit.total_seconds()):
                data = await self._peek(0)
        except TimeoutError:
            return Sniffed("", problem="silent") if web else Sniffed("raw")
        if not data:
            return Sniffed("", problem="closed_at_once")
        try:
            async with asyncio.timeout(self.tools.limits.hello.total_seconds()):
                sniffed = await self._classify(data)
        except TimeoutError:
            sniffed = Sniffed(_protocol(data), problem="hello_too_slow")
        finally:
            self.client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
        if web is not None and not sniffed.problem and sniffed.protocol != web:
            return Sniffed(sniffed.protocol, sniffed.hello, f"not_{web}")
        return sniffed

    async def _classify(self, data: bytes) -> Sniffed:
        while True:
            if data[0] == 0x16:
                try:
                    return Sniffed("tls", tls.parse_hello(data))
                except tls.BadHello as error:
                    return Sniffed("tls", problem=str(error))
                except tls.NeedMore:
                    pass
            else:
                is_http = http1.looks_like_http(data[:16])
                if is_http is not None:
                    return Sniffed("http" if is_http else "raw")
            more = await self._peek(len(data))
            if len(more) == len(data):
                protocol = _protocol(data)
                return Sniffed(protocol, problem="hello_cut" if protocol == "tls" else "")
            data = more

    async def _peek(self, known: int) -> bytes:
        """What is there, once that is more than is known, or all there will be."""
        self.client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, known + 1)
        while True:
            await readable(self.client)
            try:
                return self.client.recv(tls.MAX_HELLO_BYTES + 5, socket.MSG_PEEK)
            except BlockingIOError:
                continue


def _protocol(data: bytes) -> str:
    return "tls" if data[:1] == b"\x16" else "raw"


def _whom(destination: Destination, sniffed: Sniffed) -> tuple[Host | None, str]:
    """Whom a connection is for, and what forbids it whatever the policy says."""
    if sniffed.problem:
        named = sniffed.hello.name if sniffed.hello is not None else None
        return named or destination.name, sniffed.problem
    named = sniffed.hello.name if sniffed.hello is not None else None
    if named is None:
        return destination.name, "" if destination.name is not None else "no_name"
    if destination.certain and named != destination.name:
        return named, "name_differs"
    return named, ""
