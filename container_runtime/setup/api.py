"""Owns the few engine calls that set-up makes, over the engine's unix socket.

Plain HTTP, so that no `docker` command is needed. Knows nothing of what images hold.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

import aiohttp

from container_runtime.setup.errors import EngineCallFailed, ImageBuildFailed
from container_runtime.setup.processes import Progress

SHORT_CALL = timedelta(seconds=30)
BUILD_SILENCE = timedelta(minutes=15)  # a large COPY or commit is silent for long
OUTPUT_LINES_IN_ERROR = 25


@dataclass(frozen=True)
class Engine:
    """What an engine says of itself."""

    version: str
    system: str
    kernel: str
    operating_system: str


class EngineApi:
    """A connection to one engine; use as a context manager.

    Every method raises EngineCallFailed when the engine refuses or cannot be reached.
    """

    def __init__(self, socket: Path) -> None:
        self.socket = socket
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            base_url="http://engine",
            connector=aiohttp.UnixConnector(str(self.socket)),
            timeout=aiohttp.ClientTimeout(total=None),
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()

    async def engine(self) -> Engine:
        info = await self._call("GET", "/info")
        return Engine(
            version=str(info.get("ServerVersion", "")),
            system=str(info.get("OSType", "")),
            kernel=str(info.get("KernelVersion", "")),
            operating_system=str(info.get("OperatingSystem", "")),
        )

    async def running_containers(self) -> list[str]:
        """The names of all containers that run now."""
        containers = await self._call("GET", "/containers/json")
        return [container["Names"][0].lstrip("/") for container in containers]

    async def image_id(self, reference: str) -> str | None:
        """The id of a local image, or None when there is none of this name."""
        try:
            image = await self._call("GET", f"/images/{quote(reference)}/json")
        except EngineCallFailed as error:
            if error.status == 404:
                return None
            raise
        return str(image["Id"])

    async def images(self, *, label: str, dangling: bool | None = None) -> list[str]:
        """Every name of the images that carry `label`, or the id of an image without a name."""
        filters = {"label": [label]}
        if dangling is not None:
            filters["dangling"] = [str(dangling).lower()]
        found = await self._call("GET", "/images/json", filters=json.dumps(filters))
        names = []
        for image in found:
            tags = [tag for tag in image.get("RepoTags") or [] if tag != "<none>:<none>"]
            names.extend(tags or [image["Id"]])
        return names

    async def tag(self, image: str, repository: str, tag: str) -> None:
        await self._call("POST", f"/images/{quote(image)}/tag", repo=repository, tag=tag)

    async def remove_image(self, image: str) -> bool:
        """Removes a name, and the image with its last name. False when something still uses it."""
        try:
            await self._call("DELETE", f"/images/{quote(image)}")
        except EngineCallFailed as error:
            if error.status in (404, 409):
                return False
            raise
        return True

    async def pull(self, reference: str, *, silence: timedelta, timeout: timedelta) -> None:
        """Pulls an image; fails after `silence` without a word, and after `timeout` in all."""
        repository, _, tag = reference.rpartition(":")
        async with (
            _bounded(timeout, f"pulling {reference}"),
            self._stream(
                "/images/create", silence=silence, fromImage=repository, tag=tag
            ) as messages,
        ):
            async for message in messages:
                _raise_error(message)

    async def import_image(
        self, archive: Path, repository: str, tag: str, *, labels: Mapping[str, str]
    ) -> None:
        """Makes an image of one layer out of a tar of a root file system."""
        changes = [("changes", f"LABEL {name}={value}") for name, value in labels.items()]
        with archive.open("rb") as content:
            async with self._stream(
                "/images/create",
                silence=BUILD_SILENCE,
                body=content,
                query=[("fromSrc", "-"), ("repo", repository), ("tag", tag), *changes],
            ) as messages:
                async for message in messages:
                    _raise_error(message)

    async def build(
        self,
        context: bytes,
        *,
        target: str,
        arguments: Mapping[str, str],
        labels: Mapping[str, str],
        timeout: timedelta,
        progress: Progress,
    ) -> str:
        """Builds `target` with host networking and returns the new image's id; it has no name.

        A caller that is cancelled ends the build; the engine removes its containers.
        Raises ImageBuildFailed with the end of the output when a step fails.
        """
        output: list[str] = []
        image = ""
        async with (
            _bounded(timeout, f"building the image {target}"),
            self._stream(
                "/build",
                silence=BUILD_SILENCE,
                body=context,
                target=target,
                networkmode="host",
                forcerm="1",
                buildargs=json.dumps(dict(arguments)),
                labels=json.dumps(dict(labels)),
            ) as messages,
        ):
            async for message in messages:
                if "error" in message:
                    raise _build_failure(target, str(message["error"]), output)
                image = str(message.get("aux", {}).get("ID", image))
                for line in str(message.get("stream", "")).splitlines():
                    if line.strip():
                        output.append(line)
                        del output[:-OUTPUT_LINES_IN_ERROR]
                    if line.startswith("Step "):
                        progress(line.strip()[:120])
        if not image:
            raise _build_failure(target, "the engine ended the build without an image", output)
        return image

    async def _call(self, method: str, path: str, **query: str) -> Any:
        async with _bounded(SHORT_CALL, f"{method} {path}"), self._open(method, path, query) as got:
            return await got.json() if got.content_type == "application/json" else None

    @asynccontextmanager
    async def _stream(
        self,
        path: str,
        *,
        silence: timedelta,
        body: Any = None,
        query: list[tuple[str, str]] | None = None,
        **parameters: str,
    ) -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
        """Opens a call that answers in JSON lines; `silence` bounds the wait for each of them."""
        timeout = aiohttp.ClientTimeout(total=None, sock_read=silence.total_seconds())
        async with self._open("POST", path, query or parameters, body, timeout) as got:
            yield _messages(got)

    @asynccontextmanager
    async def _open(
        self,
        method: str,
        path: str,
        query: Any,
        body: Any = None,
        timeout: aiohttp.ClientTimeout | None = None,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        assert self._session is not None, "used outside its context"
        headers = {"Content-Type": "application/x-tar"} if body is not None else None
        options: dict[str, Any] = {"timeout": timeout} if timeout else {}
        try:
            async with self._session.request(
                method, path, params=query, data=body, headers=headers, **options
            ) as response:
                if response.status >= 400:
                    raise EngineCallFailed(
                        f"the engine at {self.socket} refused {method} {path}: "
                        f"{_message(await response.text())}",
                        status=response.status,
                        path=path,
                    )
                yield response
        except aiohttp.SocketTimeoutError as error:
            assert timeout is not None
            raise EngineCallFailed(
                f"the engine at {self.socket} was silent for {timeout.sock_read:.0f} s "
                f"during {method} {path}",
                path=path,
            ) from error
        except (aiohttp.ClientError, OSError) as error:
            raise EngineCallFailed(
                f"the engine at {self.socket} cannot be reached: {error}", path=path
            ) from error


@asynccontextmanager
async def _bounded(timeout: timedelta, what: str) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(timeout.total_seconds()):
            yield
    except TimeoutError as error:
        raise EngineCallFailed(
            f"{what} took longer than {timeout.total_seconds():.0f} s"
        ) from error


async def _messages(response: aiohttp.ClientResponse) -> AsyncIterator[dict[str, Any]]:
    rest = b""
    async for chunk in response.content.iter_any():
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            if line.strip():
                yield json.loads(line)
    if rest.strip():
        yield json.loads(rest)


def _raise_error(message: Mapping[str, Any]) -> None:
    if "error" in message:
        raise EngineCallFailed(str(message["error"]).strip())


def _build_failure(target: str, error: str, output: list[str]) -> ImageBuildFailed:
    return ImageBuildFailed(
        f"the image {target} was not built: {error.strip()}\nThe end of the build's output:\n"
        + "\n".join(f"  {line}" for line in output)
        + "\nMost often a package index cannot be reached. The build uses the machine's network, "
        "its pip settings, its proxy variables and its certificates (PIP_CERT, "
        "REQUESTS_CA_BUNDLE, SSL_CERT_FILE): see that `pip download openpyxl` works here, "
        "then try again",
        image=target,
        error=error.strip(),
    )


def _message(text: str) -> str:
    try:
        return str(json.loads(text)["message"])
    except (ValueError, KeyError, TypeError):
        return text.strip()[:500]
