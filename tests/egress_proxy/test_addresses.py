import ipaddress

import pytest

from egress_proxy.addresses import Kind, is_metadata, special


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("169.254.169.254", Kind.METADATA),
        ("168.63.129.16", Kind.METADATA),
        ("100.100.100.200", Kind.METADATA),
        ("192.0.0.192", Kind.METADATA),
        ("fd00:ec2::254", Kind.METADATA),
        ("::ffff:169.254.169.254", Kind.METADATA),
        ("::169.254.169.254", Kind.METADATA),
        ("::ffff:0:169.254.169.254", Kind.METADATA),
        ("64:ff9b::169.254.169.254", Kind.METADATA),
        ("64:ff9b:1:a9fe:a9:fe00::", Kind.METADATA),
        ("2002:a9fe:a9fe::1", Kind.METADATA),
        ("2001:0:a9fe:a9fe::", Kind.METADATA),
        ("2001:0:808:808:0:0:5601:5601", Kind.METADATA),
        ("2a00::5efe:a9fe:a9fe", Kind.METADATA),
        ("127.0.0.1", Kind.LOOPBACK),
        ("127.255.255.254", Kind.LOOPBACK),
        ("::1", Kind.LOOPBACK),
        ("::ffff:127.0.0.1", Kind.LOOPBACK),
        ("10.1.2.3", Kind.PRIVATE),
        ("172.31.0.1", Kind.PRIVATE),
        ("192.168.1.1", Kind.PRIVATE),
        ("100.64.0.1", Kind.PRIVATE),
        ("fe80::1", Kind.PRIVATE),
        ("fec0::1", Kind.PRIVATE),
        ("fd12::1", Kind.PRIVATE),
        ("64:ff9b::10.0.0.1", Kind.PRIVATE),
        ("0.0.0.0", Kind.SPECIAL),
        ("192.0.2.1", Kind.SPECIAL),
        ("198.18.0.1", Kind.SPECIAL),
        ("198.19.255.255", Kind.SPECIAL),
        ("224.0.0.1", Kind.SPECIAL),
        ("255.255.255.255", Kind.SPECIAL),
        ("ff02::1", Kind.SPECIAL),
        ("2001:db8::1", Kind.SPECIAL),
        ("::", Kind.SPECIAL),
        ("4000::1", Kind.SPECIAL),
        ("64:ff9b::8.8.8.8", Kind.SPECIAL),
        ("::ffff:8.8.8.8", Kind.TRANSITION),
        ("2002:808:808::1", Kind.TRANSITION),
        ("2001:0:808:808::", Kind.SPECIAL),
    ],
)
def test_special_addresses_are_known_in_every_wrapping(text, kind):
    found = special(ipaddress.ip_address(text))
    assert found is not None
    assert found.kind is kind


@pytest.mark.parametrize(
    "text", ["1.1.1.1", "8.8.8.8", "172.32.0.1", "168.63.129.17", "2606:4700::1111", "2a00::1"]
)
def test_ordinary_addresses_are_not_special(text):
    address = ipaddress.ip_address(text)
    assert special(address) is None
    assert not is_metadata(address)
