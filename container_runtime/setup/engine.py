"""Owns the promise that a usable container engine answers; starts one only where none does."""

import os
import platform
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from container_runtime.setup import daemon, debian
from container_runtime.setup.answering import (
    DEFAULT_SOCKET,
    Answer,
    ask,
    await_answer,
    engine_socket,
)
from container_runtime.setup.api import Engine, EngineApi
from container_runtime.setup.daemon import DaemonSpec
from container_runtime.setup.errors import (
    EngineInUse,
    EngineRefused,
    EngineStartFailed,
    EngineUnavailable,
)
from container_runtime.setup.processes import Progress, locked, run

LOCK_TIMEOUT = timedelta(minutes=20)  # what an installation over a slow line may take
SYSTEMD = Path("/run/systemd/system")
SYSTEMCTL_TIMEOUT = timedelta(minutes=2)


@dataclass(frozen=True)
class ReadyEngine:
    """An engine that answers on this kernel. `ours` says that Workroom started it."""

    socket: Path
    version: str
    ours: bool


def default_state_dir(environment: Mapping[str, str] = os.environ) -> Path:
    """Where set-up keeps its locks, the engine's log and the record that it is ours.

    One folder per machine and user, because an engine serves every installation on it.
    """
    if os.geteuid() == 0:
        return Path("/run/workroom-engine")
    runtime_dir = environment.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
    return Path(runtime_dir) / f"workroom-engine-{os.geteuid()}"


async def ensure_engine(
    progress: Progress,
    *,
    state_dir: Path | None = None,
    environment: Mapping[str, str] = os.environ,
) -> ReadyEngine:
    """Returns the engine at DOCKER_HOST or at a usual socket.

    Where none answers and we are root on Debian, installs docker.io and starts the engine;
    safe to call from several processes at once. Raises a SetupFailed that names the cure.
    """
    socket = engine_socket(environment)
    spec = DaemonSpec(state_dir or default_state_dir(environment))
    answer = await ask(socket)
    if answer is Answer.NOBODY:
        _check_may_start(socket)
        await start_daemon(spec, progress)
        answer = await ask(socket)
    if answer is Answer.SILENT and await await_answer(socket, timeout=daemon.START_TIMEOUT):
        answer = Answer.YES  # it was still starting
    if answer is not Answer.YES:
        raise _no_answer(socket, answer)
    async with EngineApi(socket) as api:
        engine = await api.engine()
    check_usable(engine, socket)
    owned = daemon.owned_daemon(spec)
    return ReadyEngine(socket, engine.version, ours=owned is not None and owned.socket == socket)


async def start_daemon(spec: DaemonSpec, progress: Progress) -> None:
    """Installs the engine if it is missing and starts it, unless another set-up was first."""
    async with locked(spec.state_dir / "engine.lock", timeout=LOCK_TIMEOUT, progress=progress):
        if await ask(spec.socket) is not Answer.YES:
            await _bring_up(spec, progress)


async def stop_engine(
    progress: Progress, *, state_dir: Path | None = None, force: bool = False
) -> bool:
    """Stops the engine if Workroom started it; False when it did not.

    Raises EngineInUse while containers run on it, unless `force`: then they are left running.
    """
    return await stop_daemon(DaemonSpec(state_dir or default_state_dir()), progress, force=force)


async def stop_daemon(spec: DaemonSpec, progress: Progress, *, force: bool = False) -> bool:
    """As `stop_engine`, for an engine that was started with this spec."""
    async with locked(spec.state_dir / "engine.lock", timeout=LOCK_TIMEOUT, progress=progress):
        owned = daemon.owned_daemon(spec)
        if owned is not None and not force and await ask(owned.socket) is Answer.YES:
            async with EngineApi(owned.socket) as api:
                running = await api.running_containers()
            if running:
                raise EngineInUse(
                    f"containers still run on the engine: {', '.join(running)}; stop them first",
                    containers=",".join(running),
                )
        return await daemon.stop(spec, progress)


def check_usable(engine: Engine, socket: Path) -> None:
    """Raises EngineRefused for an engine that is not on the kernel that runs this process."""
    kernel = platform.release()
    if platform.system() != "Linux":
        problem = f"Workroom's services run on Linux only, and this is {platform.system()}"
    elif engine.system != "linux":
        problem = f"it runs {engine.system} containers"
    elif engine.kernel != kernel:
        problem = f"it runs on kernel {engine.kernel} and this process on {kernel}"
    elif "Docker Desktop" in engine.operating_system:
        problem = "Docker Desktop runs its containers in a virtual machine"
    else:
        return
    raise EngineRefused(
        f"the engine at {socket} cannot be used: {problem}. Install an engine on this very "
        "system, or run Workroom on the system where that engine runs",
        socket=str(socket),
        kernel=engine.kernel,
    )


def _check_may_start(socket: Path) -> None:
    if socket.resolve() != DEFAULT_SOCKET.resolve():
        raise EngineUnavailable(
            f"no engine answers at {socket}; start the one that belongs there, or unset "
            "DOCKER_HOST to use the default",
            socket=str(socket),
        )
    if platform.system() != "Linux":
        raise EngineRefused(
            f"Workroom's services run on Linux only, and this is {platform.system()}; run them "
            "on a Linux machine and use the client from here"
        )
    if not daemon.is_installed() and not debian.can_install():
        raise EngineUnavailable(
            f"no engine answers at {socket} and none is installed. Workroom installs one by "
            "itself only as root on Debian or Ubuntu: install Docker Engine with your system's "
            "package manager and start it, or run this once as root on Debian",
            socket=str(socket),
        )
    if os.geteuid() != 0:
        raise EngineUnavailable(
            f"no engine answers at {socket}, and only root may start one: start it "
            "(`sudo systemctl start docker`, or this command as root), then try again",
            socket=str(socket),
        )


async def _bring_up(spec: DaemonSpec, progress: Progress) -> None:
    if not daemon.is_installed():
        await debian.install("docker.io", progress=progress)
        if not _has_systemd():
            await daemon.end_foreign(spec, progress)
    if _has_systemd():
        progress("systemctl start docker")
        started = await run("systemctl", "start", "docker", timeout=SYSTEMCTL_TIMEOUT)
        if started.code != 0:
            raise EngineStartFailed(
                f"systemctl start docker failed with {started.code}:\n{started.tail()}\n"
                "See `journalctl -u docker`, mend what it says, then try again"
            )
        return
    await daemon.start(spec, progress)


def _has_systemd() -> bool:
    return SYSTEMD.is_dir()


def _no_answer(socket: Path, answer: Answer) -> EngineUnavailable | EngineRefused:
    if answer is Answer.FORBIDDEN:
        return EngineRefused(
            f"an engine is at {socket}, but this user may not use it: join the socket's group "
            "(`sudo usermod -aG docker $USER`, then sign in again), or run as root",
            socket=str(socket),
        )
    return EngineUnavailable(
        f"the engine at {socket} does not answer; see its log and restart it, then try again",
        socket=str(socket),
    )
