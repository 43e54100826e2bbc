"""Owns the addresses that the DNS stub makes up: one per name, kept as long as the container."""

import ipaddress
import sqlite3
from typing import Protocol

from egress_proxy.names import Address, Name, checked_name
from egress_proxy.traffic_log import TrafficLog

NETWORK = ipaddress.IPv4Network("198.18.0.0/15")
FIRST = 256
"""The addresses before it are our own."""
MAX_NAMES = 10_000
"""Of one container."""


class Names(Protocol):
    """Where the names of addresses outlive the process."""

    async def load(self, container_id: str) -> dict[int, Name]: ...

    async def keep(self, container_id: str, number: int, name: Name) -> None: ...


class TooManyNames(Exception):
    """The container has asked for more names than it may."""


class Synthetic:
    """Names and their addresses, of one container."""

    def __init__(self, container_id: str, names: Names, known: dict[int, Name]) -> None:
        self._container_id = container_id
        self._names = names
        self._by_number = known
        self._by_name = {name: number for number, name in known.items()}

    async def address(self, name: Name) -> ipaddress.IPv4Address:
        """The name's address, the same at every time. Raises `TooManyNames`."""
        number = self._by_name.get(name)
        if number is None:
            if len(self._by_name) >= MAX_NAMES:
                raise TooManyNames(name)
            number = FIRST + len(self._by_name)
            self._by_name[name] = number
            self._by_number[number] = name
            await self._names.keep(self._container_id, number, name)
        return NETWORK[number]

    def name(self, address: Address) -> Name | None:
        """The name that the address was made up for."""
        if not is_synthetic(address):
            return None
        return self._by_number.get(int(address) - int(NETWORK.network_address))


def is_synthetic(address: Address) -> bool:
    """Whether an address is of the range that we make addresses up from."""
    return isinstance(address, ipaddress.IPv4Address) and address in NETWORK


class KeptNames:
    """`Names` in the file of the traffic log, written with it."""

    def __init__(self, log: TrafficLog) -> None:
        self._log = log

    async def load(self, container_id: str) -> dict[int, Name]:
        """The container's names. Raises `TrafficLogUnavailable`, as the others."""

        def work(connection: sqlite3.Connection) -> dict[int, Name]:
            rows = connection.execute(
                "SELECT number, name FROM names WHERE container_id = ?", (container_id,)
            )
            return {number: checked_name(name) for number, name in rows.fetchall()}

        return await self._log.write(work)

    async def keep(self, container_id: str, number: int, name: Name) -> None:
        """Remembers a name."""
        await self._log.write(
            lambda connection: connection.execute(
                "INSERT OR REPLACE INTO names VALUES (?, ?, ?)", (container_id, number, name)
            ).close()
        )

    async def forget(self, container_id: str) -> None:
        """Forgets the container's names."""
        await self._log.write(
            lambda connection: connection.execute(
                "DELETE FROM names WHERE container_id = ?", (container_id,)
            ).close()
        )
