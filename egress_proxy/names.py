"""Owns what a host is: a name in one form only, or an address. Pure; looks nothing up."""

import ipaddress
import re
from typing import NewType

import idna

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

Name = NewType("Name", str)
"""A host name in its one form: lower-case ASCII labels, no dot at the end."""

Host = Name | Address

MAX_NAME = 253
MAX_LABEL = 63

_LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_QUAD = re.compile(r"(?:0|[1-9][0-9]{0,2})(?:\.(?:0|[1-9][0-9]{0,2})){3}")


class BadHost(ValueError):
    """Not a host; the message says why, as the end of a sentence about it."""


def host_from_wire(raw: bytes) -> Host:
    """The host that a program inside named, in a Host header, an SNI, a CONNECT or a DNS query.

    A name must be of ASCII letters, digits, `-` and `_` in labels; an address an IPv4 dotted quad,
    or IPv6 in brackets. Raises `BadHost` for all that somebody else could read otherwise: other
    bytes, empty labels, numbers that resolvers take for addresses, a scope.
    """
    try:
        text = raw.decode("ascii")
    except UnicodeDecodeError:
        raise BadHost("has bytes that are not ASCII") from None
    return host_from_text(text)


def host_from_text(text: str) -> Host:
    """As `host_from_wire`, from text. A Unicode name is refused, with its ASCII form named."""
    if not text:
        raise BadHost("is empty")
    if text.startswith("["):
        return _bracketed(text)
    if not text.isascii():
        raise BadHost(_unicode_problem(text))
    name = text.lower()
    if name.endswith("."):
        name = name[:-1]
    if not name:
        raise BadHost("is empty")
    if _NUMBER.fullmatch(name.rpartition(".")[2]):
        return _quad(name)
    return checked_name(name)


def checked_name(name: str) -> Name:
    """`name`, if it is one in the one form. Raises `BadHost`."""
    if len(name) > MAX_NAME:
        raise BadHost(f"is longer than {MAX_NAME} characters")
    for label in name.split("."):
        if not label:
            raise BadHost("has an empty label")
        if len(label) > MAX_LABEL:
            raise BadHost(f"has a label longer than {MAX_LABEL} characters")
        if not _LABEL.fullmatch(label):
            raise BadHost(f"has a label {label!r} that is not of letters, digits, `-` and `_`")
    return Name(name)


def address_from_text(text: str) -> Address:
    """An address as it is written in a policy, brackets or not. Raises `BadHost`."""
    return _bracketed(text if text.startswith("[") else f"[{text}]") if ":" in text else _quad(text)


def split_port(raw: bytes) -> tuple[bytes, int | None]:
    """A host and the port behind its last colon, if there is one. Raises `BadHost`."""
    if raw.startswith(b"["):
        end = raw.find(b"]") + 1
        host, rest = raw[:end], raw[end:]
    else:
        host, colon, port = raw.partition(b":")
        rest = colon + port
    if not rest:
        return host, None
    digits = rest[1:]
    if rest[:1] != b":" or not digits.isdigit() or len(digits) > 5:
        raise BadHost("has a port that is not a number")
    number = int(digits)
    if not 1 <= number <= 65535:
        raise BadHost("has a port that is not between 1 and 65535")
    return host, number


def shown(host: Host) -> str:
    """A host as it is written for people and in the traffic log."""
    return str(host)


def _quad(name: str) -> Address:
    if not _QUAD.fullmatch(name):
        raise BadHost("ends with a number and is not a dotted IPv4 address")
    try:
        return ipaddress.IPv4Address(name)
    except ValueError:
        raise BadHost("is not an IPv4 address") from None


def _bracketed(text: str) -> Address:
    if not text.endswith("]"):
        raise BadHost("has a bracket that is not closed")
    inner = text[1:-1]
    if "%" in inner:
        raise BadHost("has a scope; an address outside this node has none")
    try:
        return ipaddress.IPv6Address(inner)
    except ValueError:
        raise BadHost("is not an IPv6 address") from None


def _unicode_problem(text: str) -> str:
    try:
        ascii_form = idna.encode(text, uts46=True, transitional=False).decode("ascii")
    except (idna.IDNAError, UnicodeError):
        return "has characters that are not ASCII and is no international name"
    return f"has characters that are not ASCII; if it is what you mean, write {ascii_form}"
