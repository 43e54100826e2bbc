"""Owns how an address is written: `host:port`, `[v6]:port` or `unix:/absolute/path`."""

import ipaddress
from dataclasses import dataclass
from pathlib import Path

import grpc

from workroom.errors import WorkroomError
from workroom.paths import check_socket_path


class BadAddress(WorkroomError):
    """An address is neither `host:port` nor `unix:/absolute/path`."""

    code = grpc.StatusCode.INVALID_ARGUMENT
    reason = "BAD_ADDRESS"


@dataclass(frozen=True)
class TcpAddress:
    """A host (name or literal) and a port; port 0 lets the kernel choose."""

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def loopback(self) -> bool:
        """Whether nothing sent there leaves this machine."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


@dataclass(frozen=True)
class UnixAddress:
    """A socket in the file system."""

    path: Path

    def __str__(self) -> str:
        return f"unix:{self.path}"


def parse_address(text: str) -> TcpAddress | UnixAddress:
    """Reads an address.

    Raises `BadAddress`, or `UnusablePath` for a socket's path that is relative or too long.
    """
    if text.startswith("unix:"):
        return UnixAddress(check_socket_path(Path(_without_authority(text.removeprefix("unix:")))))
    host, colon, port = text.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    host = host[1:-1] if bracketed else host
    plausible = host and not any(char in host for char in "/[] \t\n")
    if not colon or not plausible or (":" in host) != bracketed:
        raise BadAddress(f"{text!r} is neither host:port nor unix:/path", address=text)
    if not (port.isascii() and port.isdigit() and int(port) <= 65535):
        raise BadAddress(f"{text!r}: the port is not a number from 0 to 65535", address=text)
    return TcpAddress(host, int(port))


def _without_authority(path: str) -> str:
    return path.removeprefix("//") if path.startswith("///") else path
