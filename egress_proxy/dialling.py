"""Owns reaching a host: looked up once, every address checked, one of the checked ones dialled."""

import asyncio
import ipaddress
import socket
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Protocol

from egress_proxy.exceptions import OperatorException, refusal
from egress_proxy.limits import Limits
from egress_proxy.names import Address, Host, Name

MAX_ADDRESSES = 16
LOOKUPS = 32
"""At a time, of the whole node."""


class DialRefused(Exception):
    """The host leads where nothing may go; the argument is a fixed word."""


class DialFailed(Exception):
    """The host was not reached; the argument is a fixed word."""


class Resolver(Protocol):
    """Looks names up. Raises OSError where there is none."""

    async def lookup(self, name: Name) -> Sequence[Address]: ...


class SystemResolver:
    """This node's own resolver, in threads."""

    def __init__(self, executor: ThreadPoolExecutor) -> None:
        self._executor = executor

    @classmethod
    @asynccontextmanager
    async def opened(cls) -> AsyncIterator["SystemResolver"]:
        """A resolver for as long as the body runs."""
        executor = ThreadPoolExecutor(LOOKUPS, thread_name_prefix="resolver")
        try:
            yield cls(executor)
        finally:
            executor.shutdown(wait=False, cancel_futures=True)

    async def lookup(self, name: Name) -> Sequence[Address]:
        """The name's addresses, as the system orders them."""
        loop = asyncio.get_running_loop()
        found = await loop.run_in_executor(self._executor, _lookup, name)
        return list(dict.fromkeys(found))


def _lookup(name: Name) -> list[Address]:
    answers = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    return [ipaddress.ip_address(answer[4][0]) for answer in answers]


class Dialler:
    """Reaches hosts, for all containers."""

    def __init__(
        self, resolver: Resolver, limits: Limits, exceptions: Sequence[OperatorException] = ()
    ) -> None:
        self._resolver = resolver
        self._limits = limits
        self._exceptions = exceptions

    async def addresses(self, host: Host, port: int) -> Sequence[Address]:
        """The addresses that `host` leads to, each of which may be dialled.

        Raises `DialRefused` where one of them may not, whatever the others are, and `DialFailed`.
        """
        found = [host] if not isinstance(host, str) else await self._lookup(host)
        for address in found:
            refused = refusal(self._exceptions, host, port, address)
            if refused is None and self._is_this_node(address):
                if not any(each.covers(host, port, address) for each in self._exceptions):
                    refused = "address_of_this_node"
            if refused is not None:
                raise DialRefused(refused)
        return found[:MAX_ADDRESSES]

    async def connect(
        self, addresses: Sequence[Address], port: int
    ) -> tuple[socket.socket, Address]:
        """A connection to the first address that answers. Raises `DialFailed`."""
        why = "not_reached"
        try:
            async with asyncio.timeout(self._limits.connect.total_seconds()):
                for address in addresses:
                    try:
                        return await self._connect(address, port), address
                    except ConnectionRefusedError:
                        why = "refused_by_server"
                    except OSError:
                        continue
        except TimeoutError:
            why = "connect_timed_out"
        raise DialFailed(why)

    async def _lookup(self, name: Name) -> list[Address]:
        try:
            async with asyncio.timeout(self._limits.resolve.total_seconds()):
                found = list(await self._resolver.lookup(name))
        except TimeoutError:
            raise DialFailed("lookup_timed_out") from None
        except (OSError, UnicodeError):
            raise DialFailed("lookup_failed") from None
        if not found:
            raise DialFailed("lookup_failed")
        return found

    async def _connect(self, address: Address, port: int) -> socket.socket:
        family = socket.AF_INET if address.version == 4 else socket.AF_INET6
        made = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            made.setblocking(False)
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await asyncio.get_running_loop().sock_connect(made, (str(address), port))
            if ipaddress.ip_address(made.getpeername()[0]) != address:
                raise OSError("connected to somebody else")
        except BaseException:
            made.close()
            raise
        return made

    def _is_this_node(self, address: Address) -> bool:
        """Whether the kernel would reach `address` without leaving this node."""
        family = socket.AF_INET if address.version == 4 else socket.AF_INET6
        with socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as probe:
            try:
                probe.connect((str(address), 9))  # sends nothing
                return bool(ipaddress.ip_address(probe.getsockname()[0]) == address)
            except OSError:
                return False
