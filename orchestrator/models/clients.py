"""Owns the connections of one process to all its model servers, and how they are found."""

import asyncio
import base64
import ipaddress
import ssl
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING
from urllib.parse import unquote

from workroom.errors import InvalidField

if TYPE_CHECKING:
    # A tenth of the time in which the orchestrator starts: loaded by who asks a model server.
    import httpx

KEPT_CONNECTIONS = 64
"""Idle connections that are kept, all servers together."""

KEPT_FOR = timedelta(seconds=30)


@dataclass(frozen=True, slots=True)
class Limits:
    """How long each wait may be. `idle` is between two chunks, the first included.

    `answer` bounds one whole answer. `settle` is how long a server may dawdle after its answer is
    complete (usage, end of body) before the connection is closed instead of kept. `connections`
    is how many may be open at once; who finds none free waits as long as for a connection.
    """

    connect: timedelta = timedelta(seconds=10)
    idle: timedelta = timedelta(minutes=5)
    answer: timedelta = timedelta(hours=1)
    settle: timedelta = timedelta(seconds=2)
    connections: int = 2000


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A model server's address and our key there.

    Errors: `InvalidField` for a URL that is not http or https or has a query, for a key that no
    header can carry, for credentials both in the URL and as a key.
    """

    base_url: str
    api_key: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        import httpx

        try:
            url = httpx.URL(self.base_url)
        except httpx.InvalidURL as error:
            raise InvalidField("base_url", f"is no URL: {error}") from error
        if url.scheme not in ("http", "https") or not url.host:
            raise InvalidField("base_url", "must begin with http:// or https:// and name a host")
        if url.query or url.fragment:
            raise InvalidField("base_url", "must have neither query nor fragment")
        if url.userinfo and self.api_key:
            raise InvalidField("base_url", "has credentials although a key is set; use one of them")
        if not all("!" <= letter <= "~" for letter in self.api_key):
            raise InvalidField("api_key", "must be printable ASCII without spaces or line ends")

    @property
    def address(self) -> str:
        """The base URL without credentials and without a slash at the end."""
        url = self._url().copy_with(userinfo=b"")
        return str(url).rstrip("/")

    @property
    def secret(self) -> str:
        """What must not be shown: the key, or the password in the URL."""
        return self.api_key or self._url().password

    @property
    def is_loopback(self) -> bool:
        host = self._url().host
        if host == "localhost" or host.endswith(".localhost"):
            return True
        try:
            return ipaddress.ip_address(host).is_loopback
        except ValueError:
            return False

    def headers(self) -> dict[str, str]:
        common = {
            "accept": "text/event-stream, application/json",
            "accept-encoding": "identity",
            "content-type": "application/json",
        }
        userinfo = self._url().userinfo
        if self.api_key:
            return common | {"authorization": f"Bearer {self.api_key}"}
        if userinfo:
            basic = base64.b64encode(unquote(userinfo.decode("ascii")).encode()).decode("ascii")
            return common | {"authorization": f"Basic {basic}"}
        return common

    def _url(self) -> "httpx.URL":
        import httpx

        return httpx.URL(self.base_url)


class HttpClients:
    """Lends out clients, each for one exchange and with one connection.

    One pool for all would be the library's way, but its bookkeeping grows with the square of the
    open connections: a request cost 20 ms of CPU at 100 of them.

    Loopback addresses are never asked for through a proxy; for the rest the usual variables
    (HTTPS_PROXY, NO_PROXY) hold, and SSL_CERT_FILE for both.
    """

    def __init__(self, limits: Limits, clock: Callable[[], float] = time.monotonic) -> None:
        self._limits = limits
        self._clock = clock
        self._trust: ssl.SSLContext | None = None
        self._free = asyncio.Semaphore(limits.connections)
        self._idle: deque[_Idle] = deque()

    @classmethod
    @asynccontextmanager
    async def open(cls, limits: Limits) -> AsyncIterator["HttpClients"]:
        clients = cls(limits)
        try:
            yield clients
        finally:
            while clients._idle:
                await clients._idle.pop().client.aclose()

    @asynccontextmanager
    async def lease(self, endpoint: Endpoint) -> "AsyncIterator[httpx.AsyncClient]":
        """A client for this server, most likely with a connection to it.

        Errors: `TimeoutError` when all connections stay in use.
        """
        async with asyncio.timeout(self._limits.connect.total_seconds()):
            await self._free.acquire()
        try:
            client = self._take(endpoint.address) or self._make(endpoint)
            try:
                yield client
            finally:
                self._idle.append(_Idle(endpoint.address, client, self._clock()))
                await self._drop_surplus()
        finally:
            self._free.release()

    def _take(self, address: str) -> "httpx.AsyncClient | None":
        """The one used last: its connection is the least likely to have been closed."""
        for idle in reversed(self._idle):
            if idle.address == address:
                self._idle.remove(idle)
                return idle.client
        return None

    def _make(self, endpoint: Endpoint) -> "httpx.AsyncClient":
        import httpx

        if self._trust is None:
            self._trust = httpx.create_ssl_context()
        idle = self._limits.idle.total_seconds()
        return httpx.AsyncClient(
            verify=self._trust,
            trust_env=not endpoint.is_loopback,
            timeout=httpx.Timeout(idle, connect=self._limits.connect.total_seconds()),
            limits=httpx.Limits(keepalive_expiry=KEPT_FOR.total_seconds()),
            http2=False,
            follow_redirects=False,
        )

    async def _drop_surplus(self) -> None:
        oldest = self._clock() - KEPT_FOR.total_seconds()
        while self._idle and (len(self._idle) > KEPT_CONNECTIONS or self._idle[0].since < oldest):
            await self._idle.popleft().client.aclose()


@dataclass(frozen=True, slots=True, eq=False)
class _Idle:
    address: str
    client: "httpx.AsyncClient"
    since: float
