"""Feeds each parser damaged messages for a bounded time: `make fuzz FUZZ_SECONDS=…` for longer."""

import contextlib
import os
import random
import time

import pytest

from egress_proxy import dns
from egress_proxy.http1 import BadMessage, RequestHead, RequestParser, request_bytes
from egress_proxy.names import BadHost, checked_name, shown
from egress_proxy.patterns import parse_pattern
from egress_proxy.tls import BadHello, NeedMore, parse_hello
from tests.egress_proxy.hellos import hello, real_hello, records, server_name
from tests.egress_proxy.test_dns import query

SECONDS = float(os.environ.get("FUZZ_SECONDS", "4"))
"""For each parser."""
STALL = 2.0
"""Seconds of processor time after which one message counts as stalling a parser."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(4 * SECONDS + 60)]

HELLOS = [
    real_hello(),
    records(hello(server_name(b"a.example")), 9),
    records(hello(server_name(b"a.example", b"b.example"), pad=900)),
]
REQUESTS = [
    b"GET /a?b HTTP/1.1\r\nHost: a.example\r\nConnection: x\r\nX: y\r\n\r\n",
    b"GET http://a.example:81/ HTTP/1.1\r\nHost: a.example:81\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: a.example\r\nContent-Length: 3\r\n\r\nabcGET / HTTP/1.0\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: a.example\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n",
    b"CONNECT a.example:443 HTTP/1.1\r\nHost: a.example:443\r\n\r\n",
]
QUERIES = [
    query(b"a", b"example"),
    query(b"x" * 63, b"b", kind=65, more=b"\0\0\x29\x10" + bytes(7)),
]
PATTERNS = [
    b"**.a.example:8443",
    b"*.example.com",
    b"[2001:db8::1]:80",
    b"192.0.2.1",
    b"xn--e1a.ru",
]
WORDS = [
    b"\0",
    b"\r\n",
    b"\n",
    b" ",
    b":",
    b".",
    b"..",
    b"@",
    b"%2e",
    b"\xff",
    b"*",
    b"]",
    b"\xc0\x0c",
    b"Host: b.example\r\n",
    b"Content-Length: 1\r\n",
    b"Transfer-Encoding: chunked\r\n",
]


def damaged(chance: random.Random, seeds: list[bytes]) -> bytes:
    """One of the seeds, with a few changes."""
    data = bytearray(chance.choice(seeds))
    for _ in range(chance.randint(0, 6)):
        place = chance.randint(0, len(data))
        match chance.randint(0, 4):
            case 0:
                data[place : place + 1] = bytes([chance.randrange(256)])
            case 1:
                data[place:place] = chance.choice(WORDS)
            case 2:
                del data[place : place + chance.randint(1, 8)]
            case 3:
                data[place:place] = data[place : place + chance.randint(1, 40)]
            case 4:
                del data[place:]
    return bytes(data)


def of_hello(data: bytes) -> None:
    with contextlib.suppress(NeedMore, BadHello):
        name = parse_hello(data).name
        assert name is None or name == checked_name(name)


def of_query(data: bytes) -> None:
    with contextlib.suppress(dns.NotAQuery, dns.BadQuery):
        asked = dns.parse_query(data)
        assert asked.name is None or asked.name == checked_name(asked.name)
        assert dns.no_such_name(asked)


def of_pattern(data: bytes) -> None:
    with contextlib.suppress(BadHost):
        found = parse_pattern(data.decode("utf-8", "replace"))
        assert parse_pattern(str(found)) == found


def heads(data: bytes) -> list[RequestHead]:
    parser = RequestParser(64 * 1024, 200)
    with contextlib.suppress(BadMessage):
        parser.feed(data)
    return [event for event in parser.events if isinstance(event, RequestHead)]


def of_request(data: bytes) -> None:
    for head in heads(data):
        if head.method == "CONNECT":
            continue
        written = request_bytes(head, shown(head.host).encode())
        assert written.count(b"\r\n\r\n") == 1 and written.endswith(b"\r\n\r\n")
        (again,) = heads(written)
        assert (again.host, again.method, again.target) == (head.host, head.method, head.target)
        assert (again.length, again.chunked) == (head.length, head.chunked)


@pytest.mark.parametrize(
    ("check", "seeds"),
    [(of_hello, HELLOS), (of_request, REQUESTS), (of_query, QUERIES), (of_pattern, PATTERNS)],
    ids=["tls", "http", "dns", "patterns"],
)
def test_no_damaged_message_crashes_stalls_or_misleads(check, seeds):
    seed = random.SystemRandom().randrange(2**32) if "FUZZ_SECONDS" in os.environ else 1
    chance = random.Random(seed)
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        data = damaged(chance, seeds)
        begun = time.process_time()
        try:
            check(data)
        except Exception as error:
            raise AssertionError(f"seed {seed}, on {data!r}") from error
        assert time.process_time() - begun < STALL, f"seed {seed}, stalled on {data!r}"
