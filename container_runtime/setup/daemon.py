"""Owns the engine process that Workroom starts where no service manager does, and its end.

It is recorded by pid and start time under the state folder, so that no other engine is stopped.
"""

import asyncio
import json
import os
import shutil
import signal
import time
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from container_runtime.setup.answering import await_answer
from container_runtime.setup.errors import EngineStartFailed
from container_runtime.setup.processes import Progress, process_state

DAEMON = "dockerd"
START_TIMEOUT = timedelta(seconds=90)
STOP_TIMEOUT = timedelta(seconds=60)
POLL = timedelta(milliseconds=50)
START_ATTEMPTS = 5
LOG_LINES_IN_ERROR = 12


@dataclass(frozen=True)
class DaemonSpec:
    """How our engine is started and where it leaves its traces."""

    state_dir: Path
    socket: Path = Path("/var/run/docker.sock")
    pid_file: Path = Path("/var/run/docker.pid")
    arguments: tuple[str, ...] = ()
    launcher: tuple[str, ...] = ()
    """Put before the engine's own name; it must exec, so that the pid stays."""

    @property
    def log(self) -> Path:
        return self.state_dir / "dockerd.log"

    @property
    def record(self) -> Path:
        return self.state_dir / "engine.json"


@dataclass(frozen=True)
class Daemon:
    """An engine process that Workroom started."""

    pid: int
    started: int
    socket: Path

    def is_alive(self) -> bool:
        state = process_state(self.pid)
        return state is not None and not state.zombie and state.started == self.started


def owned_daemon(spec: DaemonSpec) -> Daemon | None:
    """The engine that we started and that still runs, if there is one."""
    try:
        record = json.loads(spec.record.read_text())
        daemon = Daemon(int(record["pid"]), int(record["started"]), Path(record["socket"]))
    except (FileNotFoundError, ValueError, KeyError):
        return None
    return daemon if daemon.is_alive() else None


async def start(spec: DaemonSpec, progress: Progress) -> None:
    """Starts the engine in a session of its own and waits until it answers.

    A pid file whose process is gone, a zombie or not an engine is removed; where a live engine
    holds it, that one is waited for instead. Raises EngineStartFailed with the end of the log.
    """
    spec.state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    for _ in range(START_ATTEMPTS):
        holder = clear_stale_pid_file(spec.pid_file, progress)
        if holder is not None:
            if await _answers(spec, holder):
                return
            if _has_ended(holder):
                continue
            raise EngineStartFailed(
                f"an engine runs (pid file {spec.pid_file}) but did not answer at {spec.socket} "
                f"within {START_TIMEOUT.total_seconds():.0f} s; end it or remove the file when "
                "no engine is behind it, then try again",
                socket=str(spec.socket),
            )
        progress(f"starting {DAEMON} (log: {spec.log})")
        pid = _spawn(spec)
        if await _answers(spec, pid):
            return
        if process_state(pid) is not None:
            os.kill(pid, signal.SIGTERM)
            await _gone(pid, STOP_TIMEOUT)
            raise _start_failure(spec, "it did not answer in time")
        if "pid file found" not in _log_end(spec):
            raise _start_failure(spec, "it ended at once")
    raise _start_failure(spec, f"its pid file {spec.pid_file} came back every time")


async def stop(spec: DaemonSpec, progress: Progress) -> bool:
    """Stops the engine that we started; False when there is none. Containers are left alone.

    Raises EngineStartFailed when it does not end within a minute of SIGTERM.
    """
    daemon = owned_daemon(spec)
    if daemon is None:
        spec.record.unlink(missing_ok=True)
        return False
    progress(f"stopping {DAEMON} (pid {daemon.pid})")
    os.kill(daemon.pid, signal.SIGTERM)
    if not await _gone(daemon.pid, STOP_TIMEOUT):
        raise EngineStartFailed(
            f"{DAEMON} (pid {daemon.pid}) did not end within "
            f"{STOP_TIMEOUT.total_seconds():.0f} s of SIGTERM; see {spec.log}, then end it by hand",
            pid=str(daemon.pid),
        )
    spec.record.unlink(missing_ok=True)
    return True


async def end_foreign(spec: DaemonSpec, progress: Progress) -> None:
    """Ends an engine that holds the pid file, such as the one a package's script has started."""
    holder = clear_stale_pid_file(spec.pid_file, progress)
    if holder is not None:
        progress(f"ending the {DAEMON} that the installation started, to start our own")
        os.kill(holder, signal.SIGTERM)
        await _gone(holder, STOP_TIMEOUT)


def clear_stale_pid_file(pid_file: Path, progress: Progress) -> int | None:
    """The pid of the live engine that holds the file; a file that none holds is removed."""
    try:
        content = pid_file.read_text().strip()
    except FileNotFoundError:
        return None
    state = process_state(int(content)) if content.isdigit() else None
    if state is not None and not state.zombie and state.name == DAEMON:
        return int(content)
    problem = (
        "is gone" if state is None else "is a zombie" if state.zombie else f"is {state.name!r}"
    )
    progress(f"removing the stale pid file {pid_file} (process {content or '?'} {problem})")
    pid_file.unlink(missing_ok=True)
    return None


def _spawn(spec: DaemonSpec) -> int:
    """Starts the process and records it; returns its pid, which the caller need not reap."""
    spec.log.unlink(missing_ok=True)
    argv = [*spec.launcher, DAEMON, *_live_restore(), *_addresses(spec), *spec.arguments]
    log_flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    try:
        pid = os.posix_spawnp(
            shutil.which(argv[0], path=search_path()) or argv[0],
            argv,
            {**os.environ, "PATH": search_path()},
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, str(spec.log), log_flags, 0o600),
                (os.POSIX_SPAWN_DUP2, 1, 2),
            ],
            setsid=True,
            setsigmask=[],
            setsigdef=[signal.SIGINT, signal.SIGPIPE, signal.SIGTERM],
        )
    except OSError as error:
        raise EngineStartFailed(f"{argv[0]} could not be started: {error.strerror}") from error
    state = process_state(pid)
    record = {
        "pid": pid,
        "started": state.started if state else 0,
        "socket": str(spec.socket),
    }
    partial = spec.record.with_suffix(".partial")
    partial.write_text(json.dumps(record))
    partial.replace(spec.record)
    return pid


def search_path() -> str:
    """PATH with the folders that a root without a login shell may lack; iptables is there, too."""
    return os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/local/sbin:/usr/sbin:/sbin"])


def is_installed() -> bool:
    return shutil.which(DAEMON, path=search_path()) is not None


def _addresses(spec: DaemonSpec) -> list[str]:
    """No flag for a default: the engine refuses one that its configuration file gives, too."""
    flags = []
    if spec.socket not in (Path("/var/run/docker.sock"), Path("/run/docker.sock")):
        flags.append(f"--host=unix://{spec.socket}")
    if spec.pid_file != Path("/var/run/docker.pid"):
        flags.append(f"--pidfile={spec.pid_file}")
    return flags


def _live_restore(configuration: Path = Path("/etc/docker/daemon.json")) -> list[str]:
    try:
        given = "live-restore" in json.loads(configuration.read_text())
    except (OSError, ValueError):
        given = False
    return [] if given else ["--live-restore"]


async def _answers(spec: DaemonSpec, pid: int) -> bool:
    return await await_answer(spec.socket, timeout=START_TIMEOUT, ended=lambda: _has_ended(pid))


async def _gone(pid: int, timeout: timedelta) -> bool:
    deadline = time.monotonic() + timeout.total_seconds()
    while True:
        if _has_ended(pid):
            return True
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(POLL.total_seconds())


def _has_ended(pid: int) -> bool:
    """Also reaps it, if it is a child of this process."""
    try:
        reaped, _ = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        state = process_state(pid)
        return state is None or state.zombie
    return reaped == pid


def _log_end(spec: DaemonSpec) -> str:
    try:
        lines = spec.log.read_text(errors="replace").strip().splitlines()
    except FileNotFoundError:
        return ""
    return "\n".join(lines[-LOG_LINES_IN_ERROR:])


def _start_failure(spec: DaemonSpec, problem: str) -> EngineStartFailed:
    return EngineStartFailed(
        f"{DAEMON} was started and {problem}. The end of {spec.log}:\n{_log_end(spec)}\n"
        "Mend what it says (free disk space, cgroups, iptables, a kernel without overlay), or "
        "start an engine yourself, then try again",
        log=str(spec.log),
    )
