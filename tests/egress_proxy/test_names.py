import ipaddress

import pytest

from egress_proxy.names import BadHost, host_from_text, host_from_wire, split_port


@pytest.mark.parametrize(
    ("raw", "host"),
    [
        (b"example.com", "example.com"),
        (b"EXAMPLE.Com.", "example.com"),
        (b"_dmarc.a-b.example", "_dmarc.a-b.example"),
        (b"xn--bcher-kva.example", "xn--bcher-kva.example"),
        (b"registry", "registry"),
        (b"1.2.3.4", ipaddress.ip_address("1.2.3.4")),
        (b"[2001:DB8::1]", ipaddress.ip_address("2001:db8::1")),
        (b"a" * 63 + b".com", "a" * 63 + ".com"),
    ],
)
def test_a_host_has_one_form(raw, host):
    assert host_from_wire(raw) == host


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b".",
        b"a..b",
        b"a.b..",
        b".a",
        b"a" * 64 + b".com",
        b".".join([b"a" * 60] * 5),
        b"2130706433",
        b"0x7f000001",
        b"0177.0.0.1",
        b"127.1",
        b"0",
        b"1.2.3.256",
        b"1.2.3.04",
        b"example.0x7f",
        b"good.example,evil.example",
        b"good.example@evil.example",
        b"good.example/evil",
        b"a%2eb",
        b"a%00b",
        b"-a.example",
        b"a-.example",
        b"[fe80::1%eth0]",
        b"[::1",
        b"[1.2.3.4]",
        b"::1",
        "b\u00fccher.example".encode(),
        "\u2460\u2461\u2466.0.0.1".encode(),
        "a\u3002example".encode(),
    ],
)
def test_what_could_be_read_otherwise_is_no_host(raw):
    with pytest.raises(BadHost):
        host_from_wire(raw)


@pytest.mark.parametrize(
    "byte", [*range(0x00, 0x2D), 0x2F, *range(0x3A, 0x41), *range(0x7B, 0x100)]
)
def test_no_byte_beyond_letters_digits_and_hyphens_is_in_a_name(byte):
    for raw in (b"evil%cgood.example", b"%cgood.example", b"good.example%c"):
        with pytest.raises(BadHost):
            host_from_wire(raw % byte)


def test_a_unicode_name_is_refused_with_its_ascii_form():
    with pytest.raises(BadHost, match="xn--bcher-kva.example"):
        host_from_text("B\u00fccher.example")


def test_a_port_is_split_off_once():
    assert split_port(b"a.example:8443") == (b"a.example", 8443)
    assert split_port(b"[::1]:53") == (b"[::1]", 53)
    assert split_port(b"a.example") == (b"a.example", None)
    for raw in (b"a:0", b"a:65536", b"a:1:2", b"a:", b"a:x", b"a:443@evil", b"[::1]53", b"a:+1"):
        with pytest.raises(BadHost):
            split_port(raw)
