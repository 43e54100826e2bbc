"""Owns the exchange with a model server over HTTP: one POST out, frames of JSON in.

Knows nothing of what the frames mean.
"""

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing, contextmanager
from typing import TYPE_CHECKING, Protocol

from orchestrator.models.clients import Endpoint, HttpClients, Limits
from orchestrator.models.faults import Faults
from orchestrator.models.frames import FrameReader, Garbled
from orchestrator.models.wire import Frame, Json

if TYPE_CHECKING:
    # Loaded when a server is asked: see `clients`.
    import httpx

_MAX_ERROR_BYTES = 64 * 1024


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
        self._clients = clients
        self._endpoint = endpoint
        self._limits = limits
        self._clock = clock

    def faults(self, model: str) -> Faults:
        return Faults(self._endpoint.address, model, self._endpoint.secret)

    async def exchange(
        self, path: str, body: Json, faults: Faults, answer: Settling
    ) -> AsyncGenerator[Frame, None]:
        """POST and yield what comes back, until the body ends.

        Once the answer is settled, a failure is only the end, and the rest is waited for no
        longer than the limit. Closing the generator closes the connection.

        Errors: the `ModelError` that fits.
        """
        deadline = self._clock() + self._limits.answer.total_seconds()
        with self._translated(faults):
            async with self._clients.lease(self._endpoint) as client:
                request = client.build_request(
                    "POST",
                    f"{self._endpoint.address}/{path}",
                    content=json.dumps(body, ensure_ascii=False).encode("utf-8", "replace"),
                    headers=self._endpoint.headers(),
                )
                response = await client.send(request, stream=True)
                try:
                    async with aclosing(self._frames(response, faults, answer, deadline)) as frames:
                        async for frame in frames:
                            yield frame
                finally:
                    await response.aclose()

    async def _frames(
        self, response: "httpx.Response", faults: Faults, answer: Settling, deadline: float
    ) -> AsyncGenerator[Frame, None]:
        if response.status_code >= 300:
            said = await self._read_error(response)
            raise faults.from_answer(response.status_code, response.headers, said)
        reader = FrameReader()
        async with aclosing(self._chunks(response, answer)) as chunks:
            async for chunk in chunks:
                if self._clock() > deadline and not answer.settled:
                    raise faults.endless(self._limits.answer)
                for frame in _read(reader.feed(chunk), faults):
                    yield frame
        if not answer.settled:
            for frame in _read(reader.close(), faults):
                yield frame

    async def _chunks(
        self, response: "httpx.Response", answer: Settling
    ) -> AsyncGenerator[bytes, None]:
        import httpx

        stream = response.aiter_bytes()
        settle = self._limits.settle.total_seconds()
        while True:
            try:
                async with asyncio.timeout(settle if answer.settled else None):
                    chunk = await anext(stream)
            except StopAsyncIteration:
                return
            except (httpx.HTTPError, TimeoutError):
                if answer.settled:
                    return
                raise
            yield chunk

    async def _read_error(self, response: "httpx.Response") -> bytes:
        """As much of an error's body as is of use; its status counts even when the body breaks."""
        import httpx

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
        import httpx

        try:
            yield
        except httpx.ConnectTimeout as error:
            limit = self._limits.connect.total_seconds()
            raise faults.unreachable(f"no connection within {limit:g} s") from error
        except TimeoutError as error:
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


def _read(frames: Iterator[Frame], faults: Faults) -> Iterator[Frame]:
    try:
        yield from frames
    except Garbled as error:
        if error.is_web_page:
            raise faults.mismatch(str(error)) from error
        raise faults.broken(str(error)) from error
