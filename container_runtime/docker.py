"""Owns the Docker engine: the only file that speaks to it. Its errors become ours here."""

import asyncio
import json
import platform
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from http import HTTPStatus
from pathlib import Path
from typing import Any

import aiodocker
import aiohttp
import structlog
from aiodocker.exceptions import DockerError

from container_runtime.engine import ContainerDied, ContainerSpec, EngineContainer, Image
from container_runtime.errors import (
    ContainerGone,
    EngineRefused,
    EngineUnavailable,
    HostUnsuitable,
    ImageNotFound,
)
from container_runtime.seccomp import profile

log = structlog.get_logger(__name__)

OWN_PREFIX = "workroom/"
"""Where the images without a slash in their name are."""

CALL_LIMIT = timedelta(seconds=30)
CONNECTIONS = 32
"""Calls to the engine at a time; more wait. It serialises what it does in any case."""

RESOLVER = "198.18.0.1"
"""Where the egress proxy's stub answers, when a policy lets anything out; nothing else does."""

HOSTNAME = "workroom"
RETRY_AFTER = timedelta(seconds=2)

_ANSWER_SECONDS = 1.5
_ARCHIVE_CHUNK = 256 * 1024
_UNREACHABLE = 900  # aiodocker's own number for an engine that it could not connect to
_SOCKETS = (Path("/run/docker.sock"), Path("/var/run/docker.sock"))


class DockerEngine:
    """An `Engine` over the Docker API. Use `connected`."""

    def __init__(
        self,
        path: Path,
        calls: aiodocker.Docker,
        streams: aiodocker.Docker,
        runtime_class: str | None,
    ) -> None:
        self._path = path
        self._calls = calls
        self._streams = streams
        self._runtime_class = runtime_class
        self._seccomp = json.dumps(profile(platform.machine()))

    @classmethod
    @asynccontextmanager
    async def connected(
        cls, url: str | None = None, runtime_class: str | None = None
    ) -> AsyncIterator["DockerEngine"]:
        """The engine at `url` (`unix:///…`), by default the local one's usual socket.

        Raises `EngineUnavailable`, or `HostUnsuitable` when it runs on another kernel than ours.
        """
        path = _socket_path(url)
        async with _client(path, CONNECTIONS) as calls, _client(path, 0) as streams:
            engine = cls(path, calls, streams, runtime_class)
            await engine._check_host()
            yield engine

    @property
    def socket(self) -> Path:
        """Where it listens."""
        return self._path

    async def _check_host(self) -> None:
        async with _bounded("info"):
            info = await self._calls.system.info()
        if info.get("KernelVersion") != platform.release() or info.get("OSType") != "linux":
            raise HostUnsuitable(
                f"the container engine runs on {info.get('OSType')} {info.get('KernelVersion')}, "
                f"this process on {platform.release()}: both must be on the same Linux kernel"
            )

    async def answers(self) -> bool:
        """Whether the engine takes calls now, asked over a connection of its own: while the engine
        is being stopped, those that are open may go on working."""
        try:
            async with (
                asyncio.timeout(_ANSWER_SECONDS),
                aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(self._path))) as session,
                session.get("http://engine/_ping") as response,
            ):
                return response.status == HTTPStatus.OK
        except (TimeoutError, aiohttp.ClientError, OSError):
            return False

    async def image(self, name: str, pull_timeout: timedelta) -> Image:
        """The image called `name`, pulled when the node lacks it and it is not one of ours."""
        reference = name if "/" in name or ":" in name else f"{OWN_PREFIX}{name}:latest"
        found = await self._image(reference)
        if found is None and reference.startswith(OWN_PREFIX):
            raise ImageNotFound(
                f"image {name} is not on this node; of those without a slash Workroom builds "
                "`base` and `full` (`python -m container_runtime.setup image full`)",
                image=name,
            )
        if found is None:
            await self._pull(reference, pull_timeout)
            found = await self._image(reference)
        if found is None:
            raise ImageNotFound(f"image {name} was pulled and is not there", image=name)
        return found

    async def _image(self, reference: str) -> Image | None:
        async with _bounded("inspect image"):
            try:
                found = await self._calls.images.inspect(reference)
            except DockerError as error:
                if error.status in (400, 404):
                    return None
                raise
        variables = (found.get("Config") or {}).get("Env") or []
        return Image(found["Id"], dict(_split(variables)))

    async def _pull(self, reference: str, limit: timedelta) -> None:
        problem = f"not pulled within {limit.total_seconds():.0f} s"
        try:
            async with asyncio.timeout(limit.total_seconds()):
                await self._streams.images.pull(reference)
            return
        except DockerError as error:
            problem = error.message
        except (TimeoutError, aiohttp.ClientError):
            pass
        raise ImageNotFound(
            f"image {reference} is not on this node and cannot be pulled: {problem}",
            image=reference,
        )

    async def image_directory(
        self, image: Image, path: str, labels: Mapping[str, str], into: Path
    ) -> bool:
        """A directory of an image, by way of a container that never runs."""
        config: dict[str, Any] = {
            "Image": image.reference,
            "Entrypoint": ["/none"],
            "Labels": dict(labels),
            "NetworkDisabled": True,
        }
        async with _bounded("create"):
            made = await self._calls.containers.create(config)
        try:
            async with _bounded("read image"):
                return await self._save_archive(made.id, path, into)
        finally:
            await self.remove(str(made.id))

    async def _save_archive(self, engine_id: str, path: str, into: Path) -> bool:
        try:
            async with self._streams._query(
                f"containers/{engine_id}/archive", params={"path": path}, timeout=None
            ) as response:
                file = await asyncio.to_thread(open, into, "wb")
                with file:
                    async for chunk in response.content.iter_chunked(_ARCHIVE_CHUNK):
                        await asyncio.to_thread(file.write, chunk)
        except DockerError as error:
            if error.status == 404:
                return False
            raise
        return True

    async def create(self, spec: ContainerSpec) -> str:
        """Make a container that does not run yet."""
        async with _bounded("create"):
            made = await self._calls.containers.create(self._config(spec), name=spec.name)
        return str(made.id)

    def _config(self, spec: ContainerSpec) -> dict[str, Any]:
        return {
            "Image": spec.image.reference,
            "Entrypoint": list(spec.command),
            "Cmd": [],
            # Commands get these from us one by one; the supervisor obeys none of them.
            "Env": [name.decode("utf-8", "replace") for name in spec.image.environment],
            "User": "0:0",
            "WorkingDir": "/",
            "Hostname": HOSTNAME,
            "Labels": dict(spec.labels),
            "StopSignal": "SIGKILL",
            "Healthcheck": {"Test": ["NONE"]},
            "HostConfig": self._host_config(spec),
        }

    def _host_config(self, spec: ContainerSpec) -> dict[str, Any]:
        config: dict[str, Any] = {
            "NetworkMode": "none",
            # The engine turns IPv6 off there and leaves the host's name without an address.
            "Sysctls": {"net.ipv6.conf.all.disable_ipv6": "0"},
            "ExtraHosts": [f"{HOSTNAME}:127.0.0.1"],
            "Dns": [RESOLVER],
            "DnsOptions": ["timeout:5"],
            "DnsSearch": ["."],
            "CapDrop": ["ALL"],
            "CapAdd": list(spec.capabilities),
            "SecurityOpt": ["no-new-privileges:true", f"seccomp={self._seccomp}"],
            "NanoCpus": spec.limits.cpu_millis * 1_000_000,
            "Memory": spec.limits.memory_bytes,
            "MemorySwap": spec.limits.memory_bytes,
            "PidsLimit": spec.limits.pids,
            "OomScoreAdj": 0,
            "Init": False,
            "IpcMode": "private",
            "Mounts": [
                {
                    "Type": "bind",
                    "Source": str(mount.source),
                    "Target": mount.target,
                    "ReadOnly": True,
                    "BindOptions": {"Propagation": "rprivate"},
                }
                for mount in spec.mounts
            ]
            + [
                {
                    "Type": "bind",
                    "Source": str(volume.source),
                    "Target": volume.target,
                    "BindOptions": {"Propagation": "rprivate"},
                }
                for volume in spec.volumes
            ],
            "LogConfig": {"Type": "none"},
            "RestartPolicy": {"Name": "no"},
            "AutoRemove": False,
        }
        if self._runtime_class:
            config["Runtime"] = self._runtime_class
        return config

    async def start(self, engine_id: str) -> None:
        """Run the main process."""
        async with _bounded("start"), _existing():
            await self._calls.containers.container(engine_id).start()

    async def stop(self, engine_id: str) -> None:
        """Kill the main process and wait for that."""
        async with _bounded("stop"), _existing():
            try:
                await self._calls.containers.container(engine_id).stop(t=0)
            except DockerError as error:
                if error.status != HTTPStatus.NOT_MODIFIED:
                    raise

    async def inspect(self, engine_id: str) -> EngineContainer | None:
        """What a container is now."""
        async with _bounded("inspect"):
            try:
                found = await self._calls.containers.get(engine_id)
            except DockerError as error:
                if error.status == 404:
                    return None
                raise
            return _container(await found.show())

    async def list(self, labels: Mapping[str, str]) -> Sequence[EngineContainer]:
        """All containers that carry these labels."""
        async with _bounded("list"):
            listed = await self._calls.containers.list(all=True, filters=_filters(labels))
        found = [await self.inspect(each.id) for each in listed]
        return [each for each in found if each is not None]

    async def remove(self, engine_id: str) -> None:
        """Kill and delete a container."""
        async with _bounded("remove"):
            try:
                await self._calls.containers.container(engine_id).delete(force=True, v=True)
            except DockerError as error:
                if error.status == 409 and "already in progress" in error.message:
                    return
                if error.status != 404:
                    raise

    async def deaths(self, labels: Mapping[str, str]) -> AsyncGenerator[ContainerDied, None]:
        """Deaths from now on, until the engine goes away."""
        filters = json.dumps({"type": ["container"], "event": ["die"], "label": _pairs(labels)})
        with _ours("events"):
            asked = self._streams._query("events", params={"filters": filters}, timeout=None)
            async with asked as response, response:
                async for line in response.content:
                    event = json.loads(line)
                    attributes = event["Actor"]["Attributes"]
                    code = attributes.get("exitCode", "?")
                    yield ContainerDied(event["Actor"]["ID"], _problem(code, killed=False))


@asynccontextmanager
async def _client(path: Path, connections: int) -> AsyncIterator[aiodocker.Docker]:
    connector = aiohttp.UnixConnector(str(path), limit=connections)
    docker = aiodocker.Docker(url="http://localhost", connector=connector)
    try:
        yield docker
    finally:
        await docker.close()
        await connector.close()


def _socket_path(url: str | None) -> Path:
    if url is not None:
        if not url.startswith("unix:///"):
            raise HostUnsuitable(
                f"{url}: only an engine on this machine can be used (unix:///path/docker.sock)",
                url=url,
            )
        return Path(url.removeprefix("unix://"))
    for path in _SOCKETS:
        if path.is_socket():
            return path
    raise EngineUnavailable(
        f"no container engine listens at {_SOCKETS[0]}: start Docker, or name its socket "
        "in RUNTIME_DOCKER_URL"
    )


@asynccontextmanager
async def _bounded(verb: str) -> AsyncIterator[None]:
    """Bounds a call and turns its errors into ours."""
    with _ours(verb):
        async with asyncio.timeout(CALL_LIMIT.total_seconds()):
            yield


@asynccontextmanager
async def _existing() -> AsyncIterator[None]:
    try:
        yield
    except DockerError as error:
        if error.status == HTTPStatus.NOT_FOUND:
            raise ContainerGone("the container engine has lost the container") from error
        raise


@contextmanager
def _ours(verb: str) -> Iterator[None]:
    try:
        yield
    except DockerError as error:
        if error.status == _UNREACHABLE:
            raise _unavailable(verb, "it cannot be reached") from error
        if error.status >= 500 and "context" in error.message:
            raise _unavailable(verb, error.message) from error
        raise EngineRefused(
            f"the container engine refused to {verb}: {error.message}", verb=verb
        ) from error
    except TimeoutError as error:
        seconds = CALL_LIMIT.total_seconds()
        raise _unavailable(verb, f"no answer within {seconds:.0f} s") from error
    except (aiohttp.ClientError, OSError) as error:
        raise _unavailable(verb, "the connection broke") from error


def _unavailable(verb: str, problem: str) -> EngineUnavailable:
    return EngineUnavailable(
        f"the container engine does not answer ({verb}): {problem}",
        retry_after=RETRY_AFTER,
        verb=verb,
    )


def _split(variables: Iterable[str]) -> Iterator[tuple[bytes, bytes]]:
    for variable in variables:
        name, _, value = variable.partition("=")
        yield name.encode("utf-8", "surrogateescape"), value.encode("utf-8", "surrogateescape")


def _pairs(labels: Mapping[str, str]) -> list[str]:
    return [f"{key}={value}" for key, value in labels.items()]


def _filters(labels: Mapping[str, str]) -> str:
    return json.dumps({"label": _pairs(labels)})


def _container(found: Mapping[str, Any]) -> EngineContainer:
    state = found["State"]
    running = bool(state["Running"]) and not state.get("Restarting")
    killed = bool(state.get("OOMKilled"))
    return EngineContainer(
        engine_id=found["Id"],
        labels=found["Config"].get("Labels") or {},
        running=running,
        pid=int(state.get("Pid") or 0),
        problem="" if running else _problem(state.get("ExitCode"), killed=killed),
        layer=_layer(found.get("GraphDriver") or {}),
    )


def _layer(driver: Mapping[str, Any]) -> Path | None:
    upper = (driver.get("Data") or {}).get("UpperDir")
    return Path(upper) if upper else None


def _problem(code: object, *, killed: bool) -> str:
    if killed:
        return "its main process was killed for want of memory"
    return f"its main process ended with status {code}"
