"""Owns which addresses nothing may be dialled at, by a table of our own. Pure.

The standard library's `is_global` is no help: it calls addresses global that carry a private one
inside (NAT64, 6to4, IPv4-compatible), multicast ones, and a cloud's own services.
"""

import ipaddress
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from egress_proxy.names import Address

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class Kind(StrEnum):
    """Why an address is special."""

    METADATA = "metadata"
    LOOPBACK = "loopback"
    PRIVATE = "private"
    SPECIAL = "special"
    TRANSITION = "transition"


@dataclass(frozen=True)
class Special:
    """A special range, and what lies there."""

    kind: Kind
    network: Network
    meaning: str


def _table(text: str) -> tuple[Special, ...]:
    rows = (line.split(maxsplit=2) for line in text.strip().splitlines())
    return tuple(
        Special(Kind(kind), ipaddress.ip_network(network), meaning)
        for kind, network, meaning in rows
    )


_SPECIAL = _table("""
metadata   169.254.169.254/32  cloud metadata
metadata   169.254.169.253/32  cloud resolver
metadata   169.254.169.123/32  cloud time
metadata   169.254.170.0/23    container credentials
metadata   168.63.129.16/32    cloud host services
metadata   100.100.100.200/32  cloud metadata
metadata   192.0.0.192/32      cloud metadata
metadata   fd00:ec2::/32       cloud metadata
metadata   fe80::a9fe:a9fe/128 cloud metadata
metadata   fd20:ce::254/128    cloud metadata
loopback   127.0.0.0/8         this node
loopback   ::1/128             this node
private    10.0.0.0/8          private network
private    172.16.0.0/12       private network
private    192.168.0.0/16      private network
private    100.64.0.0/10       shared carrier network
private    169.254.0.0/16      link-local
private    fc00::/7            private network
private    fe80::/10           link-local
private    fec0::/10           site-local
special    0.0.0.0/8           this network
special    192.0.0.0/24        protocol assignments
special    192.0.2.0/24        documentation
special    192.31.196.0/24     AS112
special    192.52.193.0/24     AMT
special    192.88.99.0/24      6to4 relays
special    192.175.48.0/24     AS112
special    198.18.0.0/15       benchmarks, and our synthetic addresses
special    198.51.100.0/24     documentation
special    203.0.113.0/24      documentation
special    224.0.0.0/4         multicast
special    240.0.0.0/4         reserved
special    ::/128              unspecified
special    100::/64            discard
special    100:0:0:1::/64      dummy
special    2001:2::/48         benchmarks
special    2001:10::/28        ORCHID
special    2001:20::/28        ORCHID
special    2001:db8::/32       documentation
special    3fff::/20           documentation
special    5f00::/16           segment routing
special    ff00::/8            multicast
transition ::/96               an IPv4 address inside
transition ::ffff:0:0/96       an IPv4 address inside
transition ::ffff:0:0:0/96     an IPv4 address inside
transition 64:ff9b::/96        an IPv4 address inside
transition 64:ff9b:1::/48      an IPv4 address inside
transition 2001::/32           an IPv4 address inside
transition 2002::/16           an IPv4 address inside
""")
_GLOBAL_V6 = ipaddress.ip_network("2000::/3")
_NOT_GLOBAL = Special(Kind.SPECIAL, ipaddress.ip_network("::/0"), "not a global address")
_ISATAP = (b"\x00\x00\x5e\xfe", b"\x02\x00\x5e\xfe")


def special(address: Address) -> Special | None:
    """Why nothing may be dialled at `address`; `None` where it is an ordinary public one.

    Metadata is found in whatever form it is wrapped. Any form that carries an IPv4 address inside
    is special by itself, whatever it carries.
    """
    found = [each for form in (address, *embedded(address)) for each in _matches(form)]
    if found:
        return min(found, key=lambda each: list(Kind).index(each.kind))
    if address.version == 6 and address not in _GLOBAL_V6:
        return _NOT_GLOBAL
    return None


def is_metadata(address: Address) -> bool:
    """Whether a cloud answers there with credentials or the like; no exception covers it."""
    found = special(address)
    return found is not None and found.kind is Kind.METADATA


def embedded(address: Address) -> Iterator[ipaddress.IPv4Address]:
    """The IPv4 addresses that some translator on the way would read out of an IPv6 one."""
    if isinstance(address, ipaddress.IPv4Address):
        return
    raw = address.packed
    if raw[:8] == bytes(8) and raw[8:12] in (bytes(4), b"\0\0\xff\xff", b"\xff\xff\0\0"):
        yield ipaddress.IPv4Address(raw[12:])
    elif raw[:4] == b"\x00\x64\xff\x9b":
        yield ipaddress.IPv4Address(raw[12:])
        # RFC 6052: a /48 prefix has the address around octet 8, which is zero.
        yield ipaddress.IPv4Address(raw[6:8] + raw[9:11])
    elif raw[:2] == b"\x20\x02":
        yield ipaddress.IPv4Address(raw[2:6])
    elif raw[:4] == b"\x20\x01\x00\x00":
        yield ipaddress.IPv4Address(raw[4:8])
        yield ipaddress.IPv4Address(bytes(byte ^ 0xFF for byte in raw[12:]))
    if raw[8:12] in _ISATAP:
        yield ipaddress.IPv4Address(raw[12:])


def _matches(address: Address) -> list[Special]:
    return [each for each in _SPECIAL if address in each.network]
