"""Owns the question whether an engine answers, and at which socket it is to be found."""

import asyncio
import enum
import os
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path

import aiohttp

from container_runtime.setup.errors import EngineRefused

DEFAULT_SOCKET = Path("/var/run/docker.sock")
ASK_TIMEOUT = timedelta(seconds=5)
POLL = timedelta(milliseconds=50)


class Answer(enum.Enum):
    """What came of asking an engine."""

    YES = enum.auto()
    NOBODY = enum.auto()
    FORBIDDEN = enum.auto()
    SILENT = enum.auto()


async def ask(socket: Path) -> Answer:
    """Asks the engine at `socket` for a sign of life; never raises, never takes longer than 5 s."""
    timeout = aiohttp.ClientTimeout(total=ASK_TIMEOUT.total_seconds())
    try:
        async with (
            aiohttp.ClientSession(
                connector=aiohttp.UnixConnector(str(socket)), timeout=timeout
            ) as session,
            session.get("http://engine/_ping") as response,
        ):
            return Answer.YES if response.status == 200 else Answer.SILENT
    except TimeoutError:
        return Answer.SILENT
    except (aiohttp.ClientError, OSError) as error:
        cause = getattr(error, "os_error", error)
        return Answer.FORBIDDEN if isinstance(cause, PermissionError) else Answer.NOBODY


async def await_answer(
    socket: Path, *, timeout: timedelta, ended: Callable[[], bool] = lambda: False
) -> bool:
    """Waits until the engine answers; False at the timeout, and as soon as `ended` says so."""
    try:
        async with asyncio.timeout(timeout.total_seconds()):
            while await ask(socket) is not Answer.YES:
                if ended():
                    return False
                await asyncio.sleep(POLL.total_seconds())
    except TimeoutError:
        return False
    return True


def engine_socket(environment: Mapping[str, str] = os.environ) -> Path:
    """The socket that DOCKER_HOST names, or the first usual one that exists, or the default.

    Raises EngineRefused for an address that is not a unix socket: such an engine may be on
    another machine, and containers live on the kernel that Workroom itself runs on.
    """
    host = environment.get("DOCKER_HOST", "")
    if host.startswith("unix://"):
        return Path(host.removeprefix("unix://"))
    if host:
        raise EngineRefused(
            f"DOCKER_HOST is {host!r}, but Workroom needs an engine on its own kernel, reached "
            "over a unix socket; unset DOCKER_HOST, or set it to unix:///path/of/docker.sock",
            docker_host=host,
        )
    usual = [DEFAULT_SOCKET, Path.home() / ".docker/run/docker.sock"]
    if runtime_dir := environment.get("XDG_RUNTIME_DIR"):
        usual.append(Path(runtime_dir) / "docker.sock")
    return next((socket for socket in usual if socket.is_socket()), DEFAULT_SOCKET)
