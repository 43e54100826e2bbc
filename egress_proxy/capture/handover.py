"""Owns the proxy's side of the helper: starting it, asking it, and finding it again."""

import asyncio
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import grpc
import structlog

from egress_proxy.capture import wire
from egress_proxy.capture.namespaces import Captured, Process
from egress_proxy.capture.wire import Status, Verb
from workroom.errors import WorkroomError

log = structlog.get_logger(__name__)

START_SECONDS = 20.0
CALL_SECONDS = 10.0
RETRY_SECONDS = 0.05


class CaptureUnavailable(WorkroomError):
    """The privileged helper does not answer, so that no container's traffic can be captured."""

    code = grpc.StatusCode.UNAVAILABLE
    reason = "CAPTURE_UNAVAILABLE"


class CaptureFailed(WorkroomError):
    """The container's traffic cannot be captured; the message says why."""

    code = grpc.StatusCode.FAILED_PRECONDITION
    reason = "CAPTURE_FAILED"


class WrongProcess(WorkroomError):
    """The process is not the container's, or it is gone."""

    code = grpc.StatusCode.FAILED_PRECONDITION
    reason = "PROCESS_NOT_FOUND"


class Handover:
    """Asks the helper, in a thread, one question at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._asking = asyncio.Lock()
        self._connection: socket.socket | None = None
        self._on_new: Callable[[], list[tuple[str, Process, Captured]]] = list

    @property
    def path(self) -> Path:
        """The helper's socket."""
        return self._path

    def available(self) -> bool:
        """Whether there is a helper, or was one a moment ago."""
        return self._connection is not None or self._path.exists()

    def adopting(self, held: Callable[[], list[tuple[str, Process, Captured]]]) -> None:
        """`held` names what a helper that was started again must take over."""
        self._on_new = held

    async def capture(self, container_id: str, process: Process) -> Captured:
        """What holds the container's namespace; laid now or before. The caller closes it.

        Errors: `WrongProcess`, `CaptureFailed`, `CaptureUnavailable`.
        """
        packet = wire.pack_request(Verb.CAPTURE, container_id, process)
        _, captured = await self._ask(packet)
        if captured is None:
            raise CaptureUnavailable("the helper answered without sockets")
        return captured

    async def release(self, container_id: str) -> None:
        """Makes the helper let go of a container, if it holds it."""
        await self._ask(wire.pack_request(Verb.RELEASE, container_id))

    async def held(self) -> list[str]:
        """The containers that the helper holds."""
        text, _ = await self._ask(wire.pack_request(Verb.LIST))
        return text.split("\n") if text else []

    async def watch(self) -> None:
        """Returns when the helper goes away, to be connected to again by the next question."""
        await self.held()
        connection = self._connection
        if connection is None:
            return
        loop = asyncio.get_running_loop()
        gone = asyncio.Event()
        fd = os.dup(connection.fileno())
        # Nothing comes unasked: readable outside a question means that the other side is gone.
        loop.add_reader(fd, lambda: None if self._asking.locked() else gone.set())
        try:
            await gone.wait()
        finally:
            loop.remove_reader(fd)
            os.close(fd)

    def close(self) -> None:
        """Disconnects. The helper keeps what it holds."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    async def _ask(self, packet: bytes) -> tuple[str, Captured | None]:
        async with self._asking:
            return await asyncio.to_thread(self._ask_now, packet)

    def _ask_now(self, packet: bytes) -> tuple[str, Captured | None]:
        deadline = time.monotonic() + CALL_SECONDS
        while True:
            try:
                connection = self._connected()
                return _exchange(connection, packet)
            except (OSError, ValueError) as error:
                self.close()
                if time.monotonic() > deadline or isinstance(error, FileNotFoundError):
                    raise CaptureUnavailable(f"the capture helper does not answer: {error}") from (
                        error
                    )
                time.sleep(RETRY_SECONDS)

    def _connected(self) -> socket.socket:
        if self._connection is None:
            connection = _connect(self._path)
            try:
                for container_id, process, captured in self._on_new():
                    packet = wire.pack_request(Verb.ADOPT, container_id, process)
                    try:
                        _exchange(connection, packet, captured)
                    except WorkroomError as error:
                        log.warning("not adopted", container_id=container_id, problem=str(error))
            except BaseException:
                connection.close()
                raise
            self._connection = connection
        return self._connection


def start_helper(path: Path, log_path: Path) -> None:
    """Starts a helper at `path` unless one answers there. Blocks, at most 20 s.

    Raises `CaptureUnavailable`.
    """
    if _answers(path):
        return
    with log_path.open("ab") as output:
        subprocess.Popen(
            [sys.executable, "-m", "egress_proxy.capture.helper", str(path)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            close_fds=True,
        )
    deadline = time.monotonic() + START_SECONDS
    while not _answers(path):
        if time.monotonic() > deadline:
            raise CaptureUnavailable(f"the capture helper did not start; see {log_path}")
        time.sleep(RETRY_SECONDS)


def _answers(path: Path) -> bool:
    try:
        connection = _connect(path)
    except OSError:
        return False
    connection.close()
    return True


def _connect(path: Path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
    try:
        connection.settimeout(CALL_SECONDS)
        connection.connect(str(path))
    except BaseException:
        connection.close()
        raise
    return connection


def _exchange(
    connection: socket.socket, packet: bytes, given: Captured | None = None
) -> tuple[str, Captured | None]:
    wire.send(connection, packet, given)
    reply, captured = wire.receive(connection)
    status, text = wire.unpack_reply(reply)
    if status is Status.NOT_THAT_CONTAINER:
        raise WrongProcess(text)
    if status is Status.FAILED:
        raise CaptureFailed(text)
    return text, captured
