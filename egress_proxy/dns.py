"""Owns the bytes of DNS: one question in, one answer out. Never asks anybody; knows no socket."""

import ipaddress
import struct
from dataclasses import dataclass
from enum import IntEnum

from egress_proxy.names import BadHost, Name, host_from_wire

TTL_SECONDS = 60
MAX_QUERY_BYTES = 4096

_HEADER = struct.Struct("!6H")
_QUESTION = struct.Struct("!HH")
_RESPONSE, _AUTHORITATIVE, _RECURSION_DESIRED, _RECURSION_AVAILABLE = 0x8000, 0x0400, 0x0100, 0x80
_TRUNCATED = 0x0200
_OPCODE = 0x7800
_INTERNET = 1
_OPT = 41
_POINTER_TO_QUESTION = 0xC00C
_SERIAL_SECONDS = (1, 60, 60, 60, TTL_SECONDS)


class Type(IntEnum):
    """Types of records that are told apart."""

    A = 1
    AAAA = 28


class Code(IntEnum):
    """How a query went."""

    DONE = 0
    FORMAT_ERROR = 1
    SERVER_FAILURE = 2
    NO_SUCH_NAME = 3
    NOT_IMPLEMENTED = 4
    REFUSED = 5


TYPE_NAMES = {
    1: "A", 2: "NS", 5: "CNAME", 6: "SOA", 12: "PTR", 15: "MX", 16: "TXT", 28: "AAAA", 33: "SRV",
    64: "SVCB", 65: "HTTPS", 255: "ANY",
}  # fmt: skip


@dataclass(frozen=True)
class Query:
    """A question. `name` is `None` where it asks for something that is no host name."""

    number: int
    flags: int
    question: bytes
    kind: int
    name: Name | None
    shown: str
    extended: bool

    @property
    def kind_name(self) -> str:
        """Its type, as people write it."""
        return TYPE_NAMES.get(self.kind, f"TYPE{self.kind}")


class NotAQuery(ValueError):
    """Bytes that no answer is owed to."""


class BadQuery(ValueError):
    """A query that is answered with an error alone."""

    def __init__(self, answer: bytes) -> None:
        super().__init__("bad query")
        self.answer = answer


def parse_query(packet: bytes) -> Query:
    """Reads a query. Raises `NotAQuery` or `BadQuery`, and nothing else, whatever the bytes."""
    if not _HEADER.size <= len(packet) <= MAX_QUERY_BYTES:
        raise NotAQuery("of a wrong length")
    number, flags, questions, answers, authorities, additions = _HEADER.unpack_from(packet)
    if flags & _RESPONSE:
        raise NotAQuery("an answer")
    if flags & _OPCODE:
        raise BadQuery(_error(number, flags, Code.NOT_IMPLEMENTED))
    if questions != 1 or answers or authorities or additions > 2:
        raise BadQuery(_error(number, flags, Code.FORMAT_ERROR))
    try:
        labels, end = _labels(packet, _HEADER.size)
        kind, kind_of_class = _QUESTION.unpack_from(packet, end)
    except (ValueError, struct.error):
        raise BadQuery(_error(number, flags, Code.FORMAT_ERROR)) from None
    if kind_of_class != _INTERNET:
        raise BadQuery(_error(number, flags, Code.REFUSED))
    end += _QUESTION.size
    shown = b".".join(labels).decode("ascii", "backslashreplace")
    question = packet[_HEADER.size : end]
    return Query(number, flags, question, kind, _name(labels), shown, additions > 0)


def address_answer(query: Query, address: ipaddress.IPv4Address) -> bytes:
    """The name has this address."""
    record = struct.pack("!HHHIH", _POINTER_TO_QUESTION, Type.A, _INTERNET, TTL_SECONDS, 4)
    return _answer(query, Code.DONE, answers=1) + record + address.packed + _extension(query)


def empty_answer(query: Query) -> bytes:
    """The name exists, and has nothing of the type that was asked for."""
    return _answer(query, Code.DONE, authorities=1) + _authority() + _extension(query)


def no_such_name(query: Query) -> bytes:
    """There is no such name."""
    return _answer(query, Code.NO_SUCH_NAME, authorities=1) + _authority() + _extension(query)


def failure(query: Query, code: Code) -> bytes:
    """The query is not answered."""
    return _answer(query, code) + _extension(query)


def _name(labels: list[bytes]) -> Name | None:
    # A dot within a label would move its bounds.
    if not labels or any(b"." in label for label in labels):
        return None
    try:
        host = host_from_wire(b".".join(labels))
    except BadHost:
        return None
    return host if isinstance(host, str) else None


def _labels(packet: bytes, start: int) -> tuple[list[bytes], int]:
    labels: list[bytes] = []
    place = start
    while True:
        length = packet[place] if place < len(packet) else 0xFF
        if length > 63 or place - start > 255:
            raise ValueError("a label is too long, or a pointer")
        place += 1
        if length == 0:
            return labels, place
        labels.append(packet[place : place + length])
        place += length


def _error(number: int, flags: int, code: Code) -> bytes:
    kept = flags & (_RECURSION_DESIRED | _OPCODE)
    return _HEADER.pack(number, _RESPONSE | _RECURSION_AVAILABLE | kept | code, 0, 0, 0, 0)


def _answer(query: Query, code: Code, *, answers: int = 0, authorities: int = 0) -> bytes:
    flags = _RESPONSE | _AUTHORITATIVE | _RECURSION_AVAILABLE | query.flags & _RECURSION_DESIRED
    header = _HEADER.pack(query.number, flags | code, 1, answers, authorities, int(query.extended))
    return header + query.question


def _authority() -> bytes:
    """A start of authority at the root, so that resolvers keep the answer for a minute."""
    content = b"\0\0" + struct.pack("!5I", *_SERIAL_SECONDS)
    return b"\0" + struct.pack("!HHIH", 6, _INTERNET, TTL_SECONDS, len(content)) + content


def _extension(query: Query) -> bytes:
    return b"\0" + struct.pack("!HHIH", _OPT, 1232, 0, 0) if query.extended else b""
