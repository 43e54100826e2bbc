"""Owns plain HTTP out of a container: every request judged by itself, and written anew."""

import asyncio
import socket
from collections.abc import Sequence
from dataclasses import replace

from egress_proxy import http1
from egress_proxy.connection import Connection, Destination
from egress_proxy.dialling import DialFailed, DialRefused
from egress_proxy.names import Address, Host, shown
from egress_proxy.policy import Decision, Effect, Request
from egress_proxy.policy_texts import canonical_path
from egress_proxy.splicing import relay
from egress_proxy.traffic import Attempt, Ending, Kind

READ_BYTES = 64 * 1024
NEXT_REQUEST_SECONDS = 120.0


async def serve_http(connection: Connection, inner: Destination | None = None) -> None:
    """Serves the requests of a connection, until one ends it. Raises OSError where it breaks.

    `inner` is whom an enclosing CONNECT has named.
    """
    await _Client(connection, inner).serve()


class _Gone(Exception):
    """The client has ended its side."""


class _Client:
    def __init__(self, connection: Connection, inner: Destination | None) -> None:
        self._connection = connection
        self._destination = inner or connection.destination
        self._inside = inner is not None
        self._limits = connection.tools.limits
        self._parser = self._fresh()
        self._loop = asyncio.get_running_loop()

    def _fresh(self) -> http1.RequestParser:
        return http1.RequestParser(self._limits.head_bytes, self._limits.head_fields)

    async def serve(self) -> None:
        for _ in range(self._limits.requests):
            try:
                async with asyncio.timeout(NEXT_REQUEST_SECONDS):
                    head = await self._next()
            except (_Gone, TimeoutError):
                return
            except http1.BadMessage as error:
                await self._deny_malformed(error)
                return
            assert isinstance(head, http1.RequestHead)
            if not await self._answer(head):
                return

    async def _next(self) -> http1.Event:
        while not self._parser.events:
            data = await self._loop.sock_recv(self._connection.client, READ_BYTES)
            if not data:
                raise _Gone
            self._connection.count_sent(len(data))
            self._parser.feed(data)
        return self._parser.events.popleft()

    async def _answer(self, head: http1.RequestHead) -> bool:
        """Serves one request; whether another may follow."""
        whom, problem = self._whom(head)
        path = head.target.partition(b"?")[0].decode("ascii", "backslashreplace")
        if problem:
            await self._deny(head, whom, path, Decision(Effect.DENY, "built-in", problem), 421)
            return False
        if head.method == "CONNECT":
            await self._connect(whom)
            return False
        request = replace(whom, method=head.method, path=canonical_path(path))
        decision = self._connection.rules.decide(request)
        if not decision.allowed:
            await self._deny(head, whom, path, decision, 403)
            return False
        self._connection.request = request
        try:
            dialler = self._connection.tools.dialler
            addresses = await dialler.addresses(request.host, request.port)
        except DialRefused as error:
            denied = Decision(Effect.DENY, "address", str(error))
            await self._deny(head, whom, path, denied, 403)
            return False
        except DialFailed as error:
            await self._fail(head, whom, path, decision, str(error))
            return False
        keep = await self._forward(head, request, path, decision, addresses)
        self._connection.request = None
        return keep

    def _whom(self, head: http1.RequestHead) -> tuple[Request, str]:
        """The host and port that a request is for, and what forbids it whatever the policy says."""
        destination = self._destination
        if head.method == "CONNECT":
            assert head.port is not None
            request = Request(head.host, head.port)
            return request, "connect_inside_connect" if self._inside else ""
        if destination.name is None:
            return Request(head.host, head.port or 80), "" if head.absolute else "not_for_a_proxy"
        request = Request(head.host, destination.port)
        # Some clients leave the port out: where the connection goes is what counts.
        if head.port not in (None, destination.port):
            return request, "port_differs"
        if destination.certain and head.host != destination.name:
            return request, "name_differs"
        return request, ""

    async def _connect(self, whom: Request) -> None:
        """Opens a tunnel, and serves what is said within as if it had been dialled."""
        connection = self._connection
        decision = connection.rules.decide(whom)
        if not decision.allowed and decision.reason != "needs_inspection":
            attempt = connection.attempt(
                Kind.CONNECTION, decision, "connect", shown(whom.host), whom.port
            )
            await connection.tools.recorder.note(attempt, Ending("denied", status=403))
            await self._say(403, decision.reason, whom)
            return
        await self._loop.sock_sendall(connection.client, http1.ESTABLISHED)
        inner = Destination(connection.destination.address, whom.port, whom.host, certain=True)
        sniffed = await connection.sniff_inside(inner)
        if sniffed.protocol == "http" and not sniffed.problem:
            await serve_http(connection, inner)
        else:
            await connection.tunnel(inner, sniffed)

    async def _forward(
        self,
        head: http1.RequestHead,
        request: Request,
        path: str,
        decision: Decision,
        addresses: Sequence[Address],
    ) -> bool:
        connection = self._connection
        try:
            server, address = await connection.tools.dialler.connect(addresses, request.port)
        except DialFailed as error:
            await self._fail(head, request, path, decision, str(error))
            return False
        connection.server = server
        exchange = _Exchange(self, connection, head, server, request)
        number = None
        try:
            attempt = self._attempt(head, request, path, decision, str(address))
            number = await connection.tools.recorder.begin(attempt)
            exchange.keep = await exchange.run()
            exchange.ending = "closed"
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError):
                cut = connection.ending != "closed"
                exchange.ending = connection.ending if cut else "proxy_stopped"
            connection.reset()
            raise
        finally:
            server.close()
            connection.server = None
            if number is not None:
                connection.tools.recorder.end(number, exchange.result())
        return exchange.keep

    async def _deny_malformed(self, error: http1.BadMessage) -> None:
        connection, destination = self._connection, self._destination
        decision = Decision(Effect.DENY, "built-in", error.reason)
        name = shown(destination.name) if destination.name is not None else ""
        attempt = connection.attempt(Kind.REQUEST, decision, "http", name, destination.port)
        await connection.tools.recorder.note(attempt, Ending("denied", status=error.status))
        whom = Request(destination.name or destination.address, destination.port)
        await self._say(error.status, error.reason, whom)

    async def _deny(
        self, head: http1.RequestHead, whom: Request, path: str, decision: Decision, status: int
    ) -> None:
        attempt = self._attempt(head, whom, path, decision, "")
        await self._connection.tools.recorder.note(attempt, Ending("denied", status=status))
        await self._say(status, decision.reason, whom)

    async def _fail(
        self, head: http1.RequestHead, whom: Request, path: str, decision: Decision, why: str
    ) -> None:
        attempt = self._attempt(head, whom, path, decision, "")
        await self._connection.tools.recorder.note(attempt, Ending(why, status=502))
        await self._say(502, why, whom)

    def _attempt(
        self, head: http1.RequestHead, whom: Request, path: str, decision: Decision, dialled: str
    ) -> Attempt:
        return self._connection.attempt(
            Kind.REQUEST, decision, "http", shown(whom.host), whom.port,
            dialled_address=dialled, method=head.method, path=path,
        )  # fmt: skip

    async def _say(self, status: int, reason: str, whom: Request) -> None:
        text = f"{whom} is not reached from here: {reason}"
        answer = http1.answer_bytes(status, reason, text)
        self._connection.count_received(len(answer))
        await self._connection.say_last(answer)

    async def body(self) -> http1.Data | None:
        """The next piece of the request's body; `None` at its end. Raises OSError."""
        try:
            event = await self._next()
        except (_Gone, http1.BadMessage) as error:
            raise ConnectionResetError(str(error)) from None
        return event if isinstance(event, http1.Data) else None

    def start_over(self) -> None:
        """Reads on behind a request that asked for a protocol which it does not get."""
        if self._parser.left:
            left, self._parser = self._parser.left, self._fresh()
            self._parser.feed(left)


class _Exchange:
    """One request at its server, on a connection of its own."""

    def __init__(
        self,
        client: _Client,
        connection: Connection,
        head: http1.RequestHead,
        server: socket.socket,
        request: Request,
    ) -> None:
        self._client = client
        self._connection = connection
        self._head = head
        self._server = server
        self._request = request
        self._loop = asyncio.get_running_loop()
        limits = connection.tools.limits
        self._parser = http1.ResponseParser(limits.head_bytes, limits.head_fields)
        self._sent, self._received = connection.sent, connection.received
        self._status = 0
        self._uploaded = False
        self.keep = False
        self.ending = "reset"

    def result(self) -> Ending:
        connection = self._connection
        return Ending(
            self.ending,
            connection.sent - self._sent,
            connection.received - self._received,
            self._status,
        )

    async def run(self) -> bool:
        """Sends the request and brings the answer; whether another request may follow."""
        host = _host_value(self._request.host, self._request.port)
        await self._loop.sock_sendall(self._server, http1.request_bytes(self._head, host))
        try:
            async with asyncio.TaskGroup() as tasks:
                upload = tasks.create_task(self._upload())
                keep = await self._download()
                upload.cancel()
        except* OSError as group:
            raise ConnectionResetError(str(group.exceptions[0])) from group
        return keep and self._uploaded

    async def _upload(self) -> None:
        while (piece := await self._client.body()) is not None:
            data = http1.chunk(piece.content) if self._head.chunked else piece.content
            try:
                await self._loop.sock_sendall(self._server, data)
            except OSError:
                return  # the server may have answered without wanting the rest
        if self._head.chunked:
            await self._loop.sock_sendall(self._server, http1.LAST_CHUNK)
        self._uploaded = True

    async def _download(self) -> bool:
        final: http1.ResponseHead | None = None
        while True:
            data = await self._loop.sock_recv(self._server, READ_BYTES)
            try:
                if data:
                    self._parser.feed(data)
            except http1.BadMessage as error:
                return await self._broken(final, error.reason)
            while self._parser.events:
                event = self._parser.events.popleft()
                if isinstance(event, http1.ResponseHead):
                    final = await self._head_came(event)
                    if final is not None and final.upgraded:
                        return False
                    if final is not None and _without_body(self._head, final):
                        return self._keep(final)
                elif isinstance(event, http1.Data) and final is not None:
                    await self._say(http1.chunk(event.content) if self._chunks(final)
                                    else event.content)  # fmt: skip
                elif isinstance(event, http1.End) and final is not None:
                    return await self._over(final)
            if not data:
                if final is None or final.chunked or final.length is not None:
                    return await self._broken(final, "answer_cut")
                return await self._over(final)

    async def _head_came(self, head: http1.ResponseHead) -> http1.ResponseHead | None:
        """Passes a head on. `None` where another follows."""
        if head.upgraded:
            await self._upgrade(head)
            return head
        if 100 <= head.status < 200:
            if self._head.version >= (1, 1):
                await self._say(http1.response_bytes(head, length=None, chunked=False, more=()))
            return None
        self._status = head.status
        more = () if self._keep(head) else ((b"Connection", b"close"),)
        chunked = self._chunks(head) and not _without_body(self._head, head)
        content = http1.response_bytes(head, length=head.length, chunked=chunked, more=more)
        await self._say(content)
        return head

    async def _upgrade(self, head: http1.ResponseHead) -> None:
        if not self._head.websocket:
            raise ConnectionResetError("the server changed the protocol unasked")
        self._status = head.status
        fields = ((b"Connection", b"Upgrade"), (b"Upgrade", b"websocket"))
        content = http1.response_bytes(head, length=None, chunked=False, more=fields)
        await self._say(content + self._parser.left)
        connection = self._connection
        await relay(
            connection.client, self._server, connection.tools.pipes,
            connection.count_sent, connection.count_received,
        )  # fmt: skip

    async def _over(self, final: http1.ResponseHead) -> bool:
        if self._chunks(final):
            await self._say(http1.LAST_CHUNK)
        return self._keep(final)

    async def _broken(self, final: http1.ResponseHead | None, why: str) -> bool:
        if final is not None:
            raise ConnectionResetError(why)
        self._status = 502
        text = f"{self._request} answered what is not let through: {why}"
        await self._say(http1.answer_bytes(502, why, text))
        return False

    def _keep(self, final: http1.ResponseHead) -> bool:
        return self._head.keep_alive and self._head.version >= (1, 1)

    def _chunks(self, final: http1.ResponseHead) -> bool:
        """Whether the body goes to the client in chunks: where its length is not known."""
        return final.length is None and self._head.version >= (1, 1)

    async def _say(self, content: bytes) -> None:
        await self._loop.sock_sendall(self._connection.client, content)
        self._connection.count_received(len(content))


def _without_body(request: http1.RequestHead, response: http1.ResponseHead) -> bool:
    return request.method == "HEAD" or response.status in (204, 304)


def _host_value(host: Host, port: int) -> bytes:
    text = f"[{host}]" if ":" in str(host) else str(host)
    return (text if port == 80 else f"{text}:{port}").encode("ascii")
