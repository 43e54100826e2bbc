"""Owns the exchange with a model server over HTTP: one POST out, frames of JSON in.

Knows nothing of what the frames mean.
"""

import asyncio
import base64
import ipaddress
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Protocol
from urllib.parse import unquote

import httpx

from orchestrator.models.faults import Faults
from orchestrator.models.frames import FrameReader, Garbled
from orchestrator.models.wire import Frame, Json
from workroom.errors import InvalidField

_MAX_ERROR_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Limits:
    """How long each wait may be. `idle` is between two chunks, the first included.

    `answer` bounds one whole answer. `settle` is how long a server may dawdle after its answer is
    complete (usage, end of body) before the connection is closed instead of kept.
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
        url = httpx.URL(self.base_url).copy_with(userinfo=b"")
        return str(url).rstrip("/")

    @property
    def secret(self) -> str:
        """What must not be shown: the key, or the password in the URL."""
        return self.api_key or httpx.URL(self.base_url).password

    @property
    def is_loopback(self) -> bool:
        host = httpx.URL(self.base_url).host
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
        userinfo = httpx.URL(self.base_url).userinfo
        if self.api_key:
            return common | {"authorization": f"Bearer {self.api_key}"}
        if userinfo:
            basic = base64.b64encode(unquote(userinfo.decode("ascii")).encode()).decode("ascii")
            return common | {"authorization": f"Basic {basic}"}
        return common


class HttpClients:
    """The connections of one process to all its model servers.

    Loopback addresses are never asked for through a proxy; for the rest the usual variables
    (HTTPS_PROXY, NO_PROXY) hold, and SSL_CERT_FILE for both.
    """

    def __init__(self, direct: httpx.AsyncClient, ambient: httpx.AsyncClient) -> None:
        self._direct = direct
        self._ambient = ambient

    @classmethod
    @asynccontextmanager
    async def open(cls, limits: Limits) -> AsyncIterator["HttpClients"]:
        trust = httpx.create_ssl_context()

        def client(trust_env: bool) -> httpx.AsyncClient:
            connect, idle = limits.connect.total_seconds(), limits.idle.total_seconds()
            return httpx.AsyncClient(
                verify=trust,
                trust_env=trust_env,
                timeout=httpx.Timeout(idle, connect=connect, pool=connect, write=idle),
                limits=httpx.Limits(
                    max_connections=limits.connections,
                    max_keepalive_connections=100,
                    keepalive_expiry=30,
                ),
                http2=False,
                follow_redirects=False,
            )

        async with client(False) as direct, client(True) as ambient:
            yield cls(direct, ambient)

    def for_endpoint(self, endpoint: Endpoint) -> httpx.AsyncClient:
        return self._direct if endpoint.is_loopback else self._ambient


class Settling(Protocol):
    @property
    def settled(self) -> bool:
        """Whether the answer is complete, though the body may go on."""
        ...


class ModelServer:
    """One endpoint, ready to be asked."""

    def __init__(
        self,
        clients: HttpClients,
        endpoint: Endpoint,
        limits: Limits,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = clients.for_endpoint(endpoint)
        self._endpoint = endpoint
        self._limits = limits
        self._clock = clock

    def faults(self, model: str) -> Faults:
        return Faults(self._endpoint.address, model, self._endpoint.secret)

    async def exchange(
        self, path: str, body: Json, faults: Faults, answer: Settling
    ) -> AsyncGenerator[Frame, None]:
        """POST and yield what comes back, until the body ends.

        Once the answer is settled, a failure is only the end, and the rest
        is waited for no longer than the limit. Closing the generator closes the connection.

        Errors: the `ModelError` that fits.
        """
        deadline = self._clock() + self._limits.answer.total_seconds()
        request = self._client.build_request(
            "POST",
            f"{self._endpoint.address}/{path}",
            content=json.dumps(body, ensure_ascii=False).encode("utf-8", "replace"),
            headers=self._endpoint.headers(),
        )
        with self._translated(faults):
            response = await self._client.send(request, stream=True)
        try:
            if response.status_code >= 300:
                said = await self._read_error(response, faults)
                raise faults.from_answer(response.status_code, response.headers, said)
            reader = FrameReader()
            async with aclosing(self._chunks(response, faults, answer)) as chunks:
                async for chunk in chunks:
                    if self._clock() > deadline and not answer.settled:
                        raise faults.endless(self._limits.answer)
                    for frame in _read(reader.feed, chunk, faults):
                        yield frame
            if not answer.settled:
                for frame in _read(lambda _: reader.close(), b"", faults):
                    yield frame
        finally:
            await response.aclose()

    async def _chunks(
        self, response: httpx.Response, faults: Faults, answer: Settling
    ) -> AsyncGenerator[bytes, None]:
        stream = response.aiter_bytes()
        settle = self._limits.settle.total_seconds()
        while True:
            try:
                async with asyncio.timeout(settle if answer.settled else None):
                    with self._translated(faults):
                        chunk = await anext(stream)
            except StopAsyncIteration:
                return
            except Exception:
                if answer.settled:
                    return
                raise
            yield chunk

    async def _read_error(self, response: httpx.Response, faults: Faults) -> bytes:
        """As much of an error's body as is of use; its status counts even when the body breaks."""
        said = b""
        try:
            async with asyncio.timeout(self._limits.connect.total_seconds()):
                async for chunk in response.aiter_bytes():
                    said += chunk
                    if len(said) > _MAX_ERROR_BYTES:
                        break
        except (httpx.HTTPError, TimeoutError):
            pass
        return said[:_MAX_ERROR_BYTES]

    @contextmanager
    def _translated(self, faults: Faults) -> Iterator[None]:
        try:
            yield
        except httpx.ConnectTimeout as error:
            limit = self._limits.connect.total_seconds()
            raise faults.unreachable(f"no connection within {limit:g} s") from error
        except httpx.PoolTimeout as error:
            raise faults.unreachable("all connections are in use") from error
        except httpx.ReadTimeout as error:
            raise faults.silent(self._limits.idle) from error
        except (httpx.ConnectError, httpx.ProxyError) as error:
            raise _unreachable(error, faults) from error
        except httpx.HTTPError as error:
            raise faults.broken(str(error) or type(error).__name__) from error


def _unreachable(error: Exception, faults: Faults) -> Exception:
    problem = str(error) or type(error).__name__
    if "CERTIFICATE_VERIFY_FAILED" not in problem:
        return faults.unreachable(problem)
    return faults.unreachable(
        f"its certificate is not trusted, name its CA in SSL_CERT_FILE ({problem})", retryable=False
    )


def _read(
    feed: Callable[[bytes], Iterator[Frame]], chunk: bytes, faults: Faults
) -> Iterator[Frame]:
    try:
        yield from feed(chunk)
    except Garbled as error:
        if error.is_web_page:
            raise faults.mismatch(str(error)) from error
        raise faults.broken(str(error)) from error
