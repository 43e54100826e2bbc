"""Owns the bytes of a ClientHello, as far as they say whom it is for. Sans IO, bounded."""

import struct
from dataclasses import dataclass

from egress_proxy.names import BadHost, Name, host_from_wire

MAX_HELLO_BYTES = 32 * 1024
"""Of the hello and its record headers together."""

_HANDSHAKE = 22
_CLIENT_HELLO = 1
_SERVER_NAME, _ALPN, _ECH = 0, 16, 0xFE0D
_HOST_NAME = 0
_MAX_RECORD = 16384
_MAX_RECORDS = 64

ACCESS_DENIED, INTERNAL_ERROR, UNRECOGNIZED_NAME, DECODE_ERROR = 49, 80, 112, 50


class NeedMore(Exception):
    """The hello goes on."""


class BadHello(ValueError):
    """Not a hello that is let through; the message says why, as a fixed word."""


@dataclass(frozen=True)
class Hello:
    """What a ClientHello says."""

    name: Name | None
    """Whom it is for; `None` where it does not say."""
    protocols: tuple[str, ...]
    """What it offers to speak inside."""
    encrypted: bool
    """Whether it carries an encrypted hello, or something that looks like one."""


def alert(description: int) -> bytes:
    """A fatal alert, in the clear, as a server sends it before anything is agreed."""
    return struct.pack("!BHHBB", 21, 0x0303, 2, 2, description)


def parse_hello(data: bytes) -> Hello:
    """Reads the hello at the start of what a client sent.

    Raises `NeedMore` while it is not all there, and `BadHello` for what is none or is ambiguous.
    """
    message = _message(data)
    try:
        return _hello(_Reader(message))
    except (IndexError, struct.error):
        raise BadHello("hello_malformed") from None


def _message(data: bytes) -> bytes:
    """The handshake message, put together from its records."""
    message = bytearray()
    place = 0
    for _ in range(_MAX_RECORDS):
        if len(message) >= 4:
            if message[0] != _CLIENT_HELLO:
                raise BadHello("not_a_client_hello")
            wanted = 4 + int.from_bytes(message[1:4])
            if wanted > MAX_HELLO_BYTES:
                raise BadHello("hello_too_large")
            if len(message) > wanted:
                raise BadHello("hello_followed_by_more")
            if len(message) == wanted:
                return bytes(message[4:])
        header = data[place : place + 5]
        if header[:1] and (header[0] != _HANDSHAKE or header[1:2] not in (b"", b"\x03")):
            raise BadHello("not_a_handshake")
        if len(header) < 5:
            break
        length = int.from_bytes(header[3:5])
        if not 0 < length <= _MAX_RECORD:
            raise BadHello("record_length")
        message += data[place + 5 : place + 5 + length]
        place += 5 + length
        if place > len(data):
            break
    else:
        raise BadHello("too_many_records")
    if len(data) >= MAX_HELLO_BYTES:
        raise BadHello("hello_too_large")
    if message and message[0] != _CLIENT_HELLO:
        raise BadHello("not_a_client_hello")
    raise NeedMore


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._place = 0

    def take(self, count: int) -> bytes:
        end = self._place + count
        if end > len(self._data):
            raise IndexError
        found = self._data[self._place : end]
        self._place = end
        return found

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size))

    def block(self, size: int) -> "_Reader":
        """What follows its own length, which has `size` bytes."""
        return _Reader(self.take(self.number(size)))

    def rest(self) -> bytes:
        return self._data[self._place :]

    def __bool__(self) -> bool:
        return self._place < len(self._data)


def _hello(reader: _Reader) -> Hello:
    if reader.number(1) != 3:
        raise BadHello("version")
    reader.take(1 + 32)
    reader.block(1)  # session
    reader.block(2)  # cipher suites
    reader.block(1)  # compression
    if not reader:
        return Hello(None, (), False)
    extensions = reader.block(2)
    if reader:
        raise BadHello("hello_malformed")
    seen: set[int] = set()
    name: Name | None = None
    protocols: tuple[str, ...] = ()
    while extensions:
        kind = extensions.number(2)
        content = extensions.block(2)
        if kind in seen:
            raise BadHello("extension_twice")
        seen.add(kind)
        if kind == _SERVER_NAME:
            name = _server_name(content)
        elif kind == _ALPN:
            protocols = _protocols(content)
    return Hello(name, protocols, _ECH in seen)


def _server_name(content: _Reader) -> Name:
    names = content.block(2)
    if content:
        raise BadHello("hello_malformed")
    if names.number(1) != _HOST_NAME:
        raise BadHello("server_name_kind")
    raw = names.block(2).rest()
    if names:
        raise BadHello("server_name_twice")
    try:
        host = host_from_wire(raw)
    except BadHost:
        raise BadHello("server_name_malformed") from None
    if not isinstance(host, str) or raw.endswith(b"."):
        raise BadHello("server_name_malformed")
    return host


def _protocols(content: _Reader) -> tuple[str, ...]:
    listed = content.block(2)
    found: list[str] = []
    while listed:
        found.append(listed.block(1).rest().decode("ascii", "backslashreplace"))
    return tuple(found)
