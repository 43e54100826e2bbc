import random

import pytest

from egress_proxy.tls import BadHello, NeedMore, parse_hello
from tests.egress_proxy.hellos import extension, hello, real_hello, records, server_name

GOOD = server_name(b"a.example")


def test_a_real_hello_says_whom_it_is_for():
    found = parse_hello(real_hello())
    assert (found.name, found.protocols) == ("a.example", ("h2", "http/1.1"))
    assert parse_hello(real_hello(None)).name is None


def test_a_hello_in_pieces_needs_more_until_it_is_whole():
    whole = real_hello()
    for end in range(len(whole)):
        with pytest.raises(NeedMore):
            parse_hello(whole[:end])


@pytest.mark.parametrize("size", [5, 20, 100])
def test_a_hello_in_many_records_is_put_together(size):
    assert parse_hello(records(hello(GOOD), size)).name == "a.example"


def test_a_large_hello_is_read_and_a_larger_one_refused():
    assert parse_hello(records(hello(GOOD, pad=20000))).name == "a.example"
    with pytest.raises(BadHello, match="hello_too_large"):
        parse_hello(records(hello(GOOD, pad=40000)))
    with pytest.raises(BadHello, match="too_many_records"):
        parse_hello(records(hello(GOOD), 1))


def test_an_encrypted_hello_is_noticed():
    assert parse_hello(records(hello(GOOD, extension(0xFE0D, b"x")))).encrypted


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\x80\x2e\x01\x00\x02", "not_a_handshake"),
        (b"GET / HTTP/1.1\r\n", "not_a_handshake"),
        (b"\x16\x03\x01\x00\x00", "record_length"),
        (b"\x16\x03\x01\xff\xff", "record_length"),
        (records(b"\2" + hello(GOOD)[1:]), "not_a_client_hello"),
        (records(hello(GOOD) + b"x"), "hello_followed_by_more"),
        (records(hello(GOOD, GOOD)), "extension_twice"),
        (records(hello(server_name(b"a.example", b"b.example"))), "server_name_twice"),
        (records(hello(server_name(b""))), "server_name_malformed"),
        (records(hello(server_name(b"1.2.3.4"))), "server_name_malformed"),
        (records(hello(server_name(b"a.example."))), "server_name_malformed"),
        (records(hello(server_name(b"evil\0.a.example"))), "server_name_malformed"),
        (records(hello(server_name(b"a.example", kind=1))), "server_name_kind"),
        (records(hello(extension(0, b"\0"))), "hello_malformed"),
        (records(hello(version=0x0203)), "version"),
    ],
)
def test_what_is_no_plain_hello_is_refused_with_the_reason(data, reason):
    with pytest.raises(BadHello, match=reason):
        parse_hello(data)


def test_any_bytes_are_read_or_refused():
    chance = random.Random(2)
    good = real_hello()
    for _ in range(3000):
        data = bytearray(good)
        for _ in range(chance.randint(1, 6)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        try:
            parse_hello(bytes(data[: chance.randint(0, len(data))]))
        except (BadHello, NeedMore):
            continue
