"""The privileged helper: enters namespaces and keeps what it lays there. Reads no traffic.

`python -m egress_proxy.capture.helper SOCKET`. It outlives the proxy, so that nobody inside can
take our place while that is down, and ends when no container is held and nobody is connected.
"""

import os
import selectors
import signal
import socket
import struct
import sys
import time
from pathlib import Path

from egress_proxy.capture import wire
from egress_proxy.capture.namespaces import Captured, Namespace, NotThatContainer, Process
from egress_proxy.capture.wire import Status, Verb

START_SECONDS = 5.0
"""How long it waits for the first who connects."""
IDLE_SECONDS = 0.5
"""How long it stays afterwards with nothing to hold and nobody connected."""
RESTART_SECONDS = 0.1


class Held:
    """A container's namespace and what was laid into it."""

    def __init__(self, namespace: Namespace, captured: Captured) -> None:
        self.namespace = namespace
        self.captured = captured

    def close(self) -> None:
        self.captured.close()
        self.namespace.close()


class Helper:
    """Serves one listening socket, one request after another."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ, self._accept)
        self._connections = 0
        self._held: dict[str, Held] = {}

    def serve(self) -> None:
        """Serves until there has been nothing to do for `IDLE_SECONDS`."""
        patience: float | None = START_SECONDS
        while ready := self._selector.select(patience):
            for key, _ in ready:
                key.data(key.fileobj)
            patience = None if self._connections or self._held else IDLE_SECONDS

    def _accept(self, listener: socket.socket) -> None:
        connection, _ = listener.accept()
        raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        _, uid, _ = struct.unpack("3i", raw)
        if uid not in (0, os.geteuid()):
            connection.close()
            return
        connection.settimeout(5)
        self._connections += 1
        self._selector.register(connection, selectors.EVENT_READ, self._answer)

    def _answer(self, connection: socket.socket) -> None:
        try:
            packet, captured = wire.receive(connection)
            if not packet:
                raise ConnectionResetError
            reply, handed = self._handle(packet, captured)
            wire.send(connection, reply, handed)
        except (OSError, ValueError):
            self._selector.unregister(connection)
            connection.close()
            self._connections -= 1

    def _handle(self, packet: bytes, given: Captured | None) -> tuple[bytes, Captured | None]:
        verb, container_id, process = wire.unpack_request(packet)
        try:
            if verb is Verb.CAPTURE:
                return wire.pack_reply(Status.DONE), self._capture(container_id, process)
            if verb is Verb.ADOPT and given is not None:
                self._adopt(container_id, process, given)
            elif verb is Verb.RELEASE:
                self._release(container_id)
            elif verb is Verb.LIST:
                return wire.pack_reply(Status.DONE, "\n".join(self._held)), None
        except NotThatContainer as error:
            return wire.pack_reply(Status.NOT_THAT_CONTAINER, str(error)), None
        except OSError as error:
            return wire.pack_reply(Status.FAILED, str(error)), None
        return wire.pack_reply(Status.DONE), None

    def _capture(self, container_id: str, process: Process) -> Captured:
        others = [each.namespace for name, each in self._held.items() if name != container_id]
        namespace = Namespace.of(process, others)
        held = self._held.get(container_id)
        if held is not None and held.namespace.identity == namespace.identity:
            namespace.close()
            return held.captured
        try:
            captured = namespace.capture()
        except BaseException:
            namespace.close()
            raise
        self._hold(container_id, Held(namespace, captured))
        return captured

    def _adopt(self, container_id: str, process: Process, given: Captured) -> None:
        if container_id in self._held:
            given.close()
            return
        try:
            namespace = Namespace.of(process, [each.namespace for each in self._held.values()])
        except BaseException:
            given.close()
            raise
        held = Held(namespace, given)
        if not namespace.owns(given.fds()[:4]):
            held.close()
            raise NotThatContainer("the sockets are of another namespace")
        self._hold(container_id, held)

    def _hold(self, container_id: str, held: Held) -> None:
        self._release(container_id)
        self._held[container_id] = held

        def died(_: object) -> None:
            self._release(container_id)

        self._selector.register(held.namespace.pidfd, selectors.EVENT_READ, died)

    def _release(self, container_id: str) -> None:
        held = self._held.pop(container_id, None)
        if held is not None:
            self._selector.unregister(held.namespace.pidfd)
            held.close()


def listen(path: Path) -> socket.socket:
    """A socket at `path` that only we can reach. Raises OSError."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
    path.unlink(missing_ok=True)
    before = os.umask(0o177)
    try:
        listener.bind(str(path))
    finally:
        os.umask(before)
    listener.listen(8)
    return listener


def keep_serving(path: Path) -> None:
    """Serves in a child; a child that dies is followed by another, which adopts what is left."""
    listener = listen(path)
    while True:
        child = os.fork()
        if child == 0:
            Helper(listener).serve()
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if os.waitstatus_to_exitcode(status) == 0:
            path.unlink(missing_ok=True)
            return
        time.sleep(RESTART_SECONDS)


def main() -> None:
    """Runs until nothing is held and nobody is connected."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    keep_serving(Path(sys.argv[1]))


if __name__ == "__main__":
    main()
