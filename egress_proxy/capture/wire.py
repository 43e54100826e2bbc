"""Owns the packets between the proxy and its privileged helper: fixed fields, no free text read."""

import socket
import struct
from enum import IntEnum

from egress_proxy.capture.namespaces import Captured, Process

MAX_ID_BYTES = 256
PACKET_BYTES = 256 * 1024
FDS = 5

_REQUEST = struct.Struct("!BxxxIQ")
_REPLY = struct.Struct("!B")


class Verb(IntEnum):
    """What is asked of the helper."""

    CAPTURE = 1
    """Lay capture into the container's namespace, or hand over what is laid there already."""
    RELEASE = 2
    """Let go of a container."""
    ADOPT = 3
    """Take over what a helper before this one laid; its descriptors come along."""
    LIST = 4
    """Name the containers that are held."""


class Status(IntEnum):
    """How it went."""

    DONE = 0
    NOT_THAT_CONTAINER = 1
    FAILED = 2


def pack_request(verb: Verb, container_id: str = "", process: Process | None = None) -> bytes:
    """A request. A container id has at most 256 bytes."""
    process = process or Process(0, 0)
    return _REQUEST.pack(verb, process.pid, process.start_ticks) + container_id.encode()


def unpack_request(packet: bytes) -> tuple[Verb, str, Process]:
    """Raises ValueError for what is no request."""
    if not _REQUEST.size <= len(packet) <= _REQUEST.size + MAX_ID_BYTES:
        raise ValueError("a request of a wrong length")
    verb, pid, started = _REQUEST.unpack_from(packet)
    return Verb(verb), packet[_REQUEST.size :].decode(), Process(pid, started)


def pack_reply(status: Status, text: str = "") -> bytes:
    """A reply; the text is for people, or the ids that were asked for, one a line."""
    return _REPLY.pack(status) + text.encode()


def unpack_reply(packet: bytes) -> tuple[Status, str]:
    """Raises ValueError for what is no reply."""
    if not packet:
        raise ValueError("the helper closed the connection")
    return Status(packet[0]), packet[_REPLY.size :].decode()


def send(connection: socket.socket, packet: bytes, captured: Captured | None = None) -> None:
    """Sends a packet, with what holds a namespace if it is given."""
    socket.send_fds(connection, [packet], list(captured.fds()) if captured else [])


def receive(connection: socket.socket) -> tuple[bytes, Captured | None]:
    """The next packet, and what came along. ValueError where that is not five descriptors."""
    packet, fds, flags, _ = socket.recv_fds(connection, PACKET_BYTES, FDS, socket.MSG_CMSG_CLOEXEC)
    if not fds:
        return packet, None
    if len(fds) != FDS or flags & socket.MSG_CTRUNC:
        for fd in fds:
            socket.close(fd)
        raise ValueError("not the descriptors of one namespace")
    return packet, Captured(*fds)
