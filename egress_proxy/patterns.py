"""Owns how a policy names hosts: `x`, `*.x`, `**.x`, an address, each with a port or not. Pure."""

from dataclasses import dataclass
from enum import StrEnum

from egress_proxy.names import (
    BadHost,
    Host,
    address_from_text,
    checked_name,
    host_from_text,
    split_port,
)

_SUFFIXES = frozenset(
    "co.uk org.uk ac.uk gov.uk ltd.uk plc.uk me.uk net.uk com.au net.au org.au edu.au gov.au "
    "co.nz org.nz net.nz co.jp ne.jp or.jp ac.jp go.jp co.kr or.kr co.in net.in org.in gov.in "
    "com.br net.br org.br gov.br com.cn net.cn org.cn gov.cn edu.cn com.tw org.tw com.hk com.sg "
    "com.mx com.ar com.tr com.ua co.za org.za co.il org.il com.my co.id co.th com.vn com.ph "
    "com.pl com.es com.pt com.gr com.ru com.eg com.sa com.pk com.bd com.co com.pe com.ve com.ec "
    "in-addr.arpa ip6.arpa".split()
)
"""Two-label names under which anybody can register; with single labels, never behind a star."""


class Reach(StrEnum):
    """Which names a pattern means."""

    EXACT = ""
    BELOW = "*."
    """Every name below it, at any depth, and not the name itself."""
    WITH_APEX = "**."
    """The name itself and every name below it."""


@dataclass(frozen=True)
class Pattern:
    """Hosts, by name or address, at one port or at those that the rule names."""

    reach: Reach
    host: Host
    port: int | None = None

    def matches(self, host: Host) -> bool:
        """Whether it means `host`; by whole labels."""
        if self.reach is Reach.EXACT or not isinstance(host, str):
            return self.reach is Reach.EXACT and host == self.host
        if host == self.host:
            return self.reach is Reach.WITH_APEX
        return host.endswith(f".{self.host}")

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in str(self.host) else str(self.host)
        port = f":{self.port}" if self.port is not None else ""
        return f"{self.reach.value}{host}{port}"


def parse_pattern(text: str, *, wide: bool = False) -> Pattern:
    """Reads a pattern. Raises `BadHost` with what is wrong and what to write instead.

    `wide` lets a star stand before a public suffix, as a pattern of what is forbidden may have it.
    """
    if "://" in text or "/" in text:
        raise BadHost("is a URL or has a path; write the host alone, such as `example.com`")
    if "@" in text:
        raise BadHost("has a user in it; write the host alone")
    if text in ("*", "**"):
        raise BadHost("means every host; ask for access `enabled` instead")
    reach, rest = _reach(text)
    host, port = _host(rest)
    if reach is Reach.EXACT:
        return Pattern(reach, host, port)
    if not isinstance(host, str):
        raise BadHost("has a star before an address")
    if not wide and ("." not in host or host in _SUFFIXES):
        raise BadHost(f"means everything under the public suffix `{host}`; name a domain in it")
    return Pattern(reach, host, port)


def _reach(text: str) -> tuple[Reach, str]:
    for reach in (Reach.WITH_APEX, Reach.BELOW):
        if text.startswith(reach.value):
            rest = text.removeprefix(reach.value)
            break
    else:
        reach, rest = Reach.EXACT, text
    if "*" in rest:
        raise BadHost("has a star elsewhere than as the whole first label (`*.x`, `**.x`)")
    return reach, rest


def _host(text: str) -> tuple[Host, int | None]:
    if "%" in text:
        raise BadHost("has a scope; an address outside this node has none")
    if text.startswith("["):
        raw, port = split_port(text.encode("utf-8", "replace"))
        return host_from_text(raw.decode()), port
    if text.count(":") == 1:
        raw, port = split_port(text.encode("utf-8", "replace"))
        return _plain(raw.decode("utf-8", "replace")), port
    if ":" in text:
        try:
            return address_from_text(text), None
        except BadHost:
            raise BadHost("has more than one port, or is no IPv6 address") from None
    return _plain(text), None


def _plain(text: str) -> Host:
    host = host_from_text(text)
    return checked_name(host) if isinstance(host, str) else host
