import ipaddress
import random
import struct

import pytest

from egress_proxy import dns

ADDRESS = ipaddress.IPv4Address("198.18.0.9")


def query(*labels: bytes, kind=1, klass=1, flags=0x0100, counts=(1, 0, 0, 0), more=b""):
    name = b"".join(bytes([len(label)]) + label for label in labels) + b"\0"
    return struct.pack("!6H", 7, flags, *counts) + name + struct.pack("!HH", kind, klass) + more


def header(answer: bytes) -> tuple[int, int, int, int]:
    number, flags, questions, answers, *_ = struct.unpack_from("!6H", answer)
    return number, flags & 15, questions, answers


def test_an_allowed_name_has_one_address():
    asked = dns.parse_query(query(b"A", b"Example"))
    assert (asked.name, asked.kind_name) == ("a.example", "A")
    answer = dns.address_answer(asked, ADDRESS)
    assert header(answer) == (7, 0, 1, 1)
    assert answer.endswith(ADDRESS.packed)


@pytest.mark.parametrize(
    ("make", "code"),
    [(dns.empty_answer, 0), (dns.no_such_name, 3), (lambda q: dns.failure(q, dns.Code.REFUSED), 5)],
)
def test_other_answers_carry_no_record(make, code):
    answer = make(dns.parse_query(query(b"a", b"example", kind=65)))
    assert header(answer) == (7, code, 1, 0)


def test_an_extended_query_gets_an_extended_answer():
    more = b"\0" + struct.pack("!HHIH", 41, 4096, 0, 0)
    asked = dns.parse_query(query(b"a", counts=(1, 0, 0, 1), more=more))
    for answer in (dns.address_answer(asked, ADDRESS), dns.empty_answer(asked)):
        assert struct.unpack_from("!6H", answer)[5] == 1


@pytest.mark.parametrize(
    "label", [b"a.b", b"\0", b"evil\0.good", b"%2e", "\u00fc".encode(), b"a b"]
)
def test_what_is_no_host_name_has_no_name(label):
    assert dns.parse_query(query(label, b"example")).name is None


@pytest.mark.parametrize(
    ("packet", "code"),
    [
        (query(b"a", flags=0x2800), 4),
        (query(b"a", counts=(2, 0, 0, 0)), 1),
        (query(b"a", counts=(1, 1, 0, 0)), 1),
        (query(b"a", klass=3), 5),
        (struct.pack("!6H", 7, 0, 1, 0, 0, 0) + b"\xc0\x0c\0\1\0\1", 1),
        (query(b"a")[:-3], 1),
        (query(*[b"a" * 63] * 5), 1),
    ],
)
def test_bad_queries_are_answered_with_an_error(packet, code):
    with pytest.raises(dns.BadQuery) as caught:
        dns.parse_query(packet)
    assert header(caught.value.answer)[:2] == (7, code)


def test_answers_and_fragments_are_owed_nothing():
    for packet in (b"", b"x" * 11, query(b"a", flags=0x8000), query(b"a") + b"x" * 5000):
        with pytest.raises(dns.NotAQuery):
            dns.parse_query(packet)


def test_any_bytes_are_read_or_refused():
    chance = random.Random(1)
    good = query(b"www", b"example", b"com")
    for _ in range(5000):
        packet = bytearray(good)
        for _ in range(chance.randint(1, 6)):
            packet[chance.randrange(len(packet))] = chance.randrange(256)
        try:
            asked = dns.parse_query(bytes(packet[: chance.randint(0, len(packet))]))
        except (dns.NotAQuery, dns.BadQuery):
            continue
        dns.no_such_name(asked)
