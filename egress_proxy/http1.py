"""Owns the bytes of HTTP/1.1: read strictly, written anew, never passed on as they came. Sans IO.

The parser is llhttp, which refuses smuggling forms; what it lets pass is refused here.
"""

import re
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import httptools

from egress_proxy.names import BadHost, Host, host_from_wire, split_port

Fields = tuple[tuple[bytes, bytes], ...]

_HOP_BY_HOP = frozenset(
    b"connection keep-alive proxy-connection proxy-authenticate proxy-authorization te trailer "
    b"transfer-encoding upgrade content-length host http2-settings".split()
)
_TOKEN = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_TARGET = re.compile(rb"[!-~]+")
_VALUE = re.compile(rb"[\t -~\x80-\xff]*")


class BadMessage(ValueError):
    """Not HTTP that is let through. `status` is what a client is answered with."""

    def __init__(self, reason: str, status: int = 400) -> None:
        super().__init__(reason)
        self.reason = reason
        self.status = status


@dataclass(frozen=True)
class RequestHead:
    """A request's head. `length` is that of its body; `None` with `chunked` or without a body."""

    method: str
    host: Host
    port: int | None
    absolute: bool
    """Whether the target was a whole URL, as a proxy is asked."""
    target: bytes
    """Path and query; of CONNECT, what it names."""
    version: tuple[int, int]
    fields: Fields
    length: int | None
    chunked: bool
    keep_alive: bool
    websocket: bool


@dataclass(frozen=True)
class ResponseHead:
    """A response's head."""

    status: int
    fields: Fields
    length: int | None
    chunked: bool
    upgraded: bool


@dataclass(frozen=True)
class Data:
    """A piece of a body."""

    content: bytes


@dataclass(frozen=True)
class End:
    """A message is over."""


Event = RequestHead | ResponseHead | Data | End


class _Parser:
    """Collects what httptools calls back with."""

    def __init__(self, head_bytes: int, head_fields: int) -> None:
        self.events: deque[Event] = deque()
        self._head_bytes = head_bytes
        self._head_fields = head_fields
        self._in_head = True
        self._seen = 0
        self._fields: list[tuple[bytes, bytes]] = []
        self._trailing = False
        self.left = b""
        """What came behind a message after which HTTP ends."""
        self._parser: Any = None

    def feed(self, data: bytes) -> None:
        """Takes bytes in; what they mean is in `events`. Raises `BadMessage`."""
        if self._in_head:
            self._seen += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self.left = data[upgrade.args[0] :]
        except httptools.HttpParserCallbackError as error:
            if isinstance(error.__context__, BadMessage):
                raise error.__context__ from None
            raise BadMessage("malformed") from None
        except httptools.HttpParserError:
            raise BadMessage("malformed") from None
        if self._in_head and self._seen > self._head_bytes:
            raise BadMessage("head_too_large", 431)

    def on_message_begin(self) -> None:
        self._in_head = True
        self._trailing = False
        self._fields = []

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._trailing:
            return  # trailers are dropped
        if len(self._fields) >= self._head_fields:
            raise BadMessage("too_many_fields", 431)
        self._fields.append((name, value.strip(b" \t")))

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._seen = 0
        self._trailing = True
        if sum(len(name) + len(value) + 4 for name, value in self._fields) > self._head_bytes:
            raise BadMessage("head_too_large", 431)
        for name, value in self._fields:
            if not _TOKEN.fullmatch(name) or not _VALUE.fullmatch(value):
                raise BadMessage("field_malformed")
        self.events.append(self._head())

    def on_body(self, data: bytes) -> None:
        self.events.append(Data(data))

    def on_message_complete(self) -> None:
        self.events.append(End())
        self._in_head = True

    def _head(self) -> Event:
        raise NotImplementedError

    def values(self, name: bytes) -> list[bytes]:
        return [value for each, value in self._fields if each.lower() == name]

    def framing(self) -> tuple[int | None, bool]:
        """The body's length and whether it is chunked. Raises `BadMessage` for both, and else."""
        lengths, codings = self.values(b"content-length"), self.values(b"transfer-encoding")
        if codings and (lengths or codings != [b"chunked"]):
            raise BadMessage("framing")
        if len(lengths) > 1 or (lengths and not re.fullmatch(rb"[0-9]{1,18}", lengths[0])):
            raise BadMessage("framing")
        return (int(lengths[0]) if lengths else None), bool(codings)

    def tokens(self, name: bytes) -> set[bytes]:
        return {token.strip().lower() for value in self.values(name) for token in value.split(b",")}

    def end_to_end(self) -> Fields:
        """The fields that are passed on."""
        named = self.tokens(b"connection")
        return tuple(
            (name, value)
            for name, value in self._fields
            if name.lower() not in _HOP_BY_HOP and name.lower() not in named
        )


class RequestParser(_Parser):
    """Reads what a client sends."""

    def __init__(self, head_bytes: int, head_fields: int) -> None:
        super().__init__(head_bytes, head_fields)
        self._target = b""
        self._parser = httptools.HttpRequestParser(self)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._target = b""

    def on_url(self, url: bytes) -> None:
        self._target += url

    def _head(self) -> RequestHead:
        method = self._parser.get_method()
        version = _version(self._parser.get_http_version())
        length, chunked = self.framing()
        if chunked and version < (1, 1):
            raise BadMessage("framing")
        if not _TARGET.fullmatch(self._target) or b"#" in self._target:
            raise BadMessage("target_malformed")
        if method in (b"TRACE", b"TRACK"):
            raise BadMessage("method_refused", 405)
        connection = self.tokens(b"connection")
        websocket = self._websocket(method, length, chunked, connection)
        host, port, target, absolute = self._whom(method)
        default = version >= (1, 1)
        keep = (b"close" not in connection) if default else (b"keep-alive" in connection)
        return RequestHead(
            method.decode("ascii"), host, port, absolute, target, version, self.end_to_end(),
            length, chunked, keep, websocket,
        )  # fmt: skip

    def _websocket(
        self, method: bytes, length: int | None, chunked: bool, connection: set[bytes]
    ) -> bool:
        upgrades = self.tokens(b"upgrade") - {b""}
        if not upgrades or b"upgrade" not in connection:
            return False
        if length or chunked:
            raise BadMessage("upgrade_with_body")
        return method == b"GET" and upgrades == {b"websocket"}

    def _whom(self, method: bytes) -> tuple[Host, int | None, bytes, bool]:
        hosts = self.values(b"host")
        if len(hosts) != 1:
            raise BadMessage("host_missing" if not hosts else "host_twice")
        host, port = _authority(hosts[0])
        if method == b"CONNECT":
            target = _authority(self._target)
            if target[1] is None or (target[0] != host or port not in (None, target[1])):
                raise BadMessage("connect_target")
            return *target, self._target, False
        if self._target.startswith(b"/") or (self._target == b"*" and method == b"OPTIONS"):
            return host, port, self._target, False
        scheme, separator, rest = self._target.partition(b"://")
        if scheme.lower() != b"http" or not separator:
            raise BadMessage("target_malformed")
        authority, slash, path = rest.partition(b"/")
        if b"?" in authority:
            raise BadMessage("target_malformed")
        if _with_port(_authority(authority)) != _with_port((host, port)):
            raise BadMessage("host_differs_from_target")
        return host, port, slash + path or b"/", True


class ResponseParser(_Parser):
    """Reads what a server answers."""

    def __init__(self, head_bytes: int, head_fields: int) -> None:
        super().__init__(head_bytes, head_fields)
        self._parser = httptools.HttpResponseParser(self)

    def _head(self) -> ResponseHead:
        status = self._parser.get_status_code()
        length, chunked = self.framing()
        return ResponseHead(status, self.end_to_end(), length, chunked, status == 101)

    def fields_of_upgrade(self) -> Fields:
        """What an upgraded response says of the protocol that follows."""
        return tuple((name, value) for name, value in self._fields if name.lower() == b"upgrade")


def request_bytes(head: RequestHead, host: bytes) -> bytes:
    """A request's head, for the server `host`, on a connection for it alone."""
    fields = [(b"Host", host), *head.fields]
    if head.websocket:
        fields += [(b"Connection", b"Upgrade"), (b"Upgrade", b"websocket")]
    else:
        fields.append((b"Connection", b"close"))
    fields += _framing(head.length, head.chunked)
    return b"%s %s HTTP/1.1\r\n" % (head.method.encode(), head.target) + _lines(fields)


def response_bytes(
    head: ResponseHead, *, length: int | None, chunked: bool, more: Iterable[tuple[bytes, bytes]]
) -> bytes:
    """A response's head, with the framing that its body will have."""
    fields = [*head.fields, *_framing(length, chunked), *more]
    return b"HTTP/1.1 %d %s\r\n" % (head.status, _REASONS.get(head.status, b"-")) + _lines(fields)


def answer_bytes(status: int, reason: str, text: str) -> bytes:
    """A whole answer of our own, after which the connection ends. `text` has the reason in it."""
    body = f"{text}\n".encode()
    fields = [
        (b"Content-Type", b"text/plain; charset=utf-8"),
        (b"Content-Length", b"%d" % len(body)),
        (b"Workroom-Egress", reason.encode()),
        (b"Connection", b"close"),
    ]
    return b"HTTP/1.1 %d %s\r\n" % (status, _REASONS.get(status, b"-")) + _lines(fields) + body


def chunk(data: bytes) -> bytes:
    """A piece of a chunked body."""
    return b"%x\r\n%s\r\n" % (len(data), data)


LAST_CHUNK = b"0\r\n\r\n"
ESTABLISHED = b"HTTP/1.1 200 Connection established\r\n\r\n"
METHODS = frozenset(
    b"GET HEAD POST PUT PATCH DELETE OPTIONS CONNECT TRACE PROPFIND PROPPATCH MKCOL COPY MOVE "
    b"LOCK UNLOCK REPORT SEARCH MERGE TRACK PRI".split()
)
"""Words that begin a request."""


def looks_like_http(start: bytes) -> bool | None:
    """Whether bytes begin a request; `None` while that cannot be said."""
    word, space, _ = start.partition(b" ")
    if space:
        return word in METHODS
    return None if any(method.startswith(word) for method in METHODS) else False


def _authority(raw: bytes) -> tuple[Host, int | None]:
    try:
        host, port = split_port(raw)
        return host_from_wire(host), port
    except BadHost:
        raise BadMessage("host_malformed") from None


def _with_port(authority: tuple[Host, int | None]) -> tuple[Host, int]:
    return authority[0], authority[1] or 80


def _version(text: str) -> tuple[int, int]:
    if text not in ("1.0", "1.1"):
        raise BadMessage("version", 505)
    return (1, 0) if text == "1.0" else (1, 1)


def _framing(length: int | None, chunked: bool) -> list[tuple[bytes, bytes]]:
    if chunked:
        return [(b"Transfer-Encoding", b"chunked")]
    return [] if length is None else [(b"Content-Length", b"%d" % length)]


def _lines(fields: Iterable[tuple[bytes, bytes]]) -> bytes:
    return b"".join(b"%s: %s\r\n" % field for field in fields) + b"\r\n"


_REASONS = {
    100: b"Continue", 101: b"Switching Protocols", 103: b"Early Hints", 200: b"OK",
    201: b"Created", 202: b"Accepted", 204: b"No Content", 206: b"Partial Content",
    301: b"Moved Permanently", 302: b"Found", 303: b"See Other", 304: b"Not Modified",
    307: b"Temporary Redirect", 308: b"Permanent Redirect", 400: b"Bad Request",
    401: b"Unauthorized", 403: b"Forbidden", 404: b"Not Found", 405: b"Method Not Allowed",
    409: b"Conflict", 413: b"Content Too Large", 421: b"Misdirected Request",
    429: b"Too Many Requests", 431: b"Request Header Fields Too Large",
    500: b"Internal Server Error", 501: b"Not Implemented", 502: b"Bad Gateway",
    503: b"Service Unavailable", 504: b"Gateway Timeout", 505: b"HTTP Version Not Supported",
}  # fmt: skip
