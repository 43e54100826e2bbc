"""Owns the few words of rtnetlink that bring a namespace's loopback up and route all to it."""

import os
import socket
import struct

_NEWLINK, _NEWROUTE = 16, 24
_REQUEST, _ACK, _CREATE, _REPLACE = 0x1, 0x4, 0x400, 0x100
_ERROR = 2
_UP = 1
_LOCAL_TABLE, _PROTOCOL_STATIC, _SCOPE_HOST, _TYPE_LOCAL = 255, 4, 254, 2
_RTA_DST, _RTA_OIF, _RTA_PREFSRC = 1, 4, 7
_LOOPBACK = 1  # its index in every namespace


def bring_up() -> None:
    """Sets `lo` up in the calling thread's namespace. Raises OSError."""
    _call(_NEWLINK, 0, struct.pack("BxHiII", socket.AF_UNSPEC, 0, _LOOPBACK, _UP, _UP))


def route_everything_here(family: socket.AddressFamily) -> None:
    """Makes every address of the family a local one, on `lo`; those there already stay better.

    Who sends without an address of its own sends from loopback, so that answers come back as
    loopback's. Raises OSError.
    """
    header = struct.pack(
        "BBBBBBBBI", family, 0, 0, 0, _LOCAL_TABLE, _PROTOCOL_STATIC, _SCOPE_HOST, _TYPE_LOCAL, 0
    )
    attributes = _attribute(_RTA_OIF, struct.pack("i", _LOOPBACK))
    source = "127.0.0.1" if family is socket.AF_INET else "::1"
    attributes += _attribute(_RTA_PREFSRC, socket.inet_pton(family, source))
    _call(_NEWROUTE, _CREATE | _REPLACE, header + attributes)


def _attribute(kind: int, value: bytes) -> bytes:
    return struct.pack("HH", 4 + len(value), kind) + value + bytes(-len(value) % 4)


def _call(kind: int, flags: int, payload: bytes) -> None:
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 0) as link:
        link.settimeout(5)
        link.bind((0, 0))
        header = struct.pack("IHHII", 16 + len(payload), kind, _REQUEST | _ACK | flags, 1, 0)
        link.send(header + payload)
        answer = link.recv(8192)
    number = struct.unpack_from("H", answer, 4)[0]
    code = struct.unpack_from("i", answer, 16)[0]
    if number != _ERROR or code:
        raise OSError(-code, f"netlink {kind}: {os.strerror(-code)}")
