"""Owns the operator's exceptions: named hosts that may lead into named special ranges. Pure."""

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass

from egress_proxy.addresses import Kind, Network, is_metadata, special
from egress_proxy.names import Address, BadHost, Host
from egress_proxy.patterns import Pattern, parse_pattern


@dataclass(frozen=True)
class OperatorException:
    """A host, at a port, may be dialled in a range that is not public."""

    pattern: Pattern
    network: Network

    def covers(self, host: Host, port: int, address: Address) -> bool:
        """Whether it lets `host` lead to `address`."""
        return (
            self.pattern.matches(host)
            and self.pattern.port in (None, port)
            and address in self.network
        )


def parse_exception(text: str) -> OperatorException:
    """Reads `HOST[:PORT]=RANGE`, such as `index.corp.example:443=10.8.0.0/16`.

    Loopback must be named by a range within it. Raises ValueError.
    """
    host, equals, network_text = text.partition("=")
    if not equals:
        raise ValueError(f"{text!r} is not HOST[:PORT]=RANGE")
    try:
        pattern = parse_pattern(host.strip(), wide=True)
        network = ipaddress.ip_network(network_text.strip())
    except (BadHost, ValueError) as error:
        raise ValueError(f"{text!r}: {error}") from None
    if is_metadata(network.network_address) and network.num_addresses == 1:
        raise ValueError(f"{text!r}: no exception covers a metadata address")
    return OperatorException(pattern, network)


def refusal(
    exceptions: Sequence[OperatorException], host: Host, port: int, address: Address
) -> str | None:
    """Why `address` is not dialled for `host`, as a fixed word; `None` where it may be."""
    found = special(address)
    if found is None:
        return None
    if found.kind is Kind.METADATA:
        return "address_metadata"
    covering = [each for each in exceptions if each.covers(host, port, address)]
    if found.kind is Kind.LOOPBACK:
        covering = [each for each in covering if _within_loopback(each.network)]
    return None if covering else f"address_{found.kind.value}"


def _within_loopback(network: Network) -> bool:
    kinds = [special(network.network_address), special(network.broadcast_address)]
    return all(kind is not None and kind.kind is Kind.LOOPBACK for kind in kinds)
