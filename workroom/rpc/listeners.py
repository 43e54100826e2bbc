"""Owns where a server listens and who may call there; an open door is refused at start."""

import errno
import os
import socket
from dataclasses import dataclass

import grpc
import structlog

from workroom.errors import WorkroomError
from workroom.rpc.address import TcpAddress, UnixAddress, parse_address
from workroom.rpc.auth import Verifier
from workroom.rpc.sockets import AddressInUse, restrict
from workroom.rpc.tls import ServerTls

log = structlog.get_logger(__name__)


class InsecureListener(WorkroomError):
    """A listener would let anybody in."""

    code = grpc.StatusCode.FAILED_PRECONDITION
    reason = "INSECURE_LISTENER"


class BindFailed(WorkroomError):
    """The address cannot be listened on."""

    code = grpc.StatusCode.FAILED_PRECONDITION
    reason = "BIND_FAILED"


@dataclass(frozen=True)
class Listener:
    """An address to listen on (`host:port`, port 0 for any; `unix:/path`) and who may call there.

    A unix socket is its owner's and needs no key unless there is a `verifier`. On TCP there must
    be a `verifier` or mutual TLS.
    """

    address: str
    verifier: Verifier | None = None
    tls: ServerTls | None = None

    def parsed(self) -> TcpAddress | UnixAddress:
        """The address. Raises `InsecureListener`, `BadAddress` or `UnusablePath`."""
        address = parse_address(self.address)
        name = str(address)
        if isinstance(address, UnixAddress):
            if self.tls is not None:
                raise InsecureListener(f"{name}: a unix socket takes no TLS", address=name)
            return address
        if self.verifier is None and not (self.tls and self.tls.mutual):
            raise InsecureListener(
                f"refusing to listen on {name} without a token or mutual TLS: whoever reaches it "
                "would own the service. Configure one of them, or use a unix socket",
                address=name,
            )
        return address

    def bind(self, server: grpc.aio.Server) -> str:
        """Opens the address for a server that has not started, and returns what to dial.

        A unix socket's path must be `claimed`. Raises `AddressInUse` or `BindFailed`.
        """
        address = self.parsed()
        try:
            if self.tls is not None:
                port = server.add_secure_port(str(address), self.tls.credentials())
            else:
                port = server.add_insecure_port(str(address))
        except RuntimeError:
            raise _bind_problem(address) from None
        if isinstance(address, UnixAddress):
            restrict(address.path)
            return str(address)
        if self.tls is None and not address.loopback:
            log.warning("keys travel unencrypted", address=str(address))
        return str(TcpAddress(address.host, port))


def _bind_problem(address: TcpAddress | UnixAddress) -> WorkroomError:
    """Why the library, which does not say, could not bind."""
    name = str(address)
    try:
        _try_bind(address)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return AddressInUse(
                f"another server listens on {name}; stop it, or set another address "
                "(the orchestrator's is in ORCHESTRATOR_ADDRESS)",
                address=name,
            )
        problem = error.strerror or str(error)
        return BindFailed(f"cannot listen on {name}: {problem}", address=name, problem=problem)
    return BindFailed(f"cannot listen on {name}", address=name)


def _try_bind(address: TcpAddress | UnixAddress) -> None:
    if isinstance(address, UnixAddress):
        if not os.access(address.path.parent, os.W_OK):
            raise PermissionError(errno.EACCES, f"{address.path.parent} is not writable")
        return
    family, kind, protocol, _, where = socket.getaddrinfo(
        address.host, address.port, type=socket.SOCK_STREAM
    )[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(where)
