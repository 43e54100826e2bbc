"""Owns finding a container's network namespace, proving which it is, and laying capture into it.

Runs in the privileged helper. Knows no policy and reads no traffic.
"""

import ctypes
import os
import select
import socket
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from egress_proxy.capture import netlink, steering

T = TypeVar("T")

STUB_V4 = "198.18.0.1"
STUB_V6 = "fd57:6f72:6b72::1"
"""Addresses of our sockets in every namespace: not loopback's, so that they take no port of the
container's own servers there."""
DNS_PORT = 53
BACKLOG = 1024

_CLONE_NEWNET = 0x40000000
_SO_NETNS_COOKIE = 71
_IP_FREEBIND, _IPV6_FREEBIND = 15, 78
_IP_PKTINFO = 8


class NotThatContainer(Exception):
    """The process is not the one meant, or its namespace is not its container's alone."""


@dataclass(frozen=True)
class Process:
    """A process, told apart from a later one with the same number by when it was started."""

    pid: int
    start_ticks: int


@dataclass(frozen=True)
class Captured:
    """What holds a namespace's traffic: our sockets in it, and the link that steers to them."""

    tcp4: int
    tcp6: int
    udp4: int
    udp6: int
    link: int

    def fds(self) -> tuple[int, int, int, int, int]:
        """All descriptors, in the order in which they are handed over."""
        return self.tcp4, self.tcp6, self.udp4, self.udp6, self.link

    def close(self) -> None:
        """Lets go of them. Capture ends when the last holder does."""
        for fd in self.fds():
            os.close(fd)


class Namespace:
    """A container's network namespace, held by descriptor."""

    def __init__(self, fd: int, pidfd: int) -> None:
        self.fd = fd
        self.pidfd = pidfd
        found = os.fstat(fd)
        self.identity = (found.st_dev, found.st_ino)

    @classmethod
    def of(cls, process: Process, others: Iterable["Namespace"]) -> "Namespace":
        """The namespace of a live process. Raises `NotThatContainer`, for the host's as well."""
        try:
            pidfd = os.pidfd_open(process.pid)
        except OSError as error:
            raise NotThatContainer(f"process {process.pid}: {error.strerror}") from None
        try:
            fd = _open_namespace(process)
        except BaseException:
            os.close(pidfd)
            raise
        namespace = cls(fd, pidfd)
        try:
            namespace._prove(process, others)
        except BaseException:
            namespace.close()
            raise
        return namespace

    def _prove(self, process: Process, others: Iterable["Namespace"]) -> None:
        # The descriptor was opened while that process lived: it lives now, and began when it did.
        if start_ticks(process.pid) != process.start_ticks or not self.alive():
            raise NotThatContainer(f"process {process.pid} is another one by now")
        for path in ("/proc/thread-self/ns/net", "/proc/1/ns/net"):
            if self.identity == _identity(path):
                raise NotThatContainer(f"process {process.pid} is in this host's own network")
        if any(other.identity == self.identity for other in others):
            raise NotThatContainer(f"process {process.pid} shares another container's network")

    def alive(self) -> bool:
        """Whether the container's main process still runs."""
        poll = select.poll()
        poll.register(self.pidfd, select.POLLIN)
        return not poll.poll(0)

    def close(self) -> None:
        """Lets go of it."""
        os.close(self.fd)
        os.close(self.pidfd)

    def capture(self) -> Captured:
        """Lays our sockets and steering into it. Raises OSError, and leaves nothing then."""
        made: list[int] = []
        try:
            self.inside(lambda: made.extend(_lay_sockets()))
            tcp4, tcp6, udp4, udp6 = made
            made.append(steering.attach(self.fd, (tcp4, tcp6, udp4, udp6)))
            return Captured(*made)
        except BaseException:
            for fd in made:
                os.close(fd)
            raise

    def owns(self, sockets: Iterable[int]) -> bool:
        """Whether the sockets were made in it."""
        wanted = self.inside(_cookie_here)
        return all(_cookie(fd) == wanted for fd in sockets)

    def inside(self, work: Callable[[], T]) -> T:
        """Runs `work` in the namespace, in a thread that ends with it."""
        answers: list[T] = []
        failures: list[BaseException] = []

        def run() -> None:
            try:
                _enter(self.fd)
                answers.append(work())
            except BaseException as error:
                failures.append(error)

        thread = threading.Thread(target=run, name="namespace")
        thread.start()
        thread.join()
        if failures:
            raise failures[0]
        return answers[0]


def start_ticks(pid: int) -> int:
    """When a process started, in clock ticks since boot. Raises `NotThatContainer`."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError as error:
        raise NotThatContainer(f"process {pid}: {error.strerror}") from None
    return int(stat.rpartition(b")")[2].split()[19])


def _identity(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except PermissionError:  # the first process may be hidden from us
        return None
    return found.st_dev, found.st_ino


def _open_namespace(process: Process) -> int:
    try:
        return os.open(f"/proc/{process.pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise NotThatContainer(f"process {process.pid}: {error.strerror}") from None


def _enter(fd: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(fd, _CLONE_NEWNET):
        code = ctypes.get_errno()
        raise OSError(code, f"setns: {os.strerror(code)}")


def _lay_sockets() -> list[int]:
    _enable_ipv6()
    netlink.bring_up()
    netlink.route_everything_here(socket.AF_INET)
    netlink.route_everything_here(socket.AF_INET6)
    made: list[socket.socket] = []
    try:
        for family, host in ((socket.AF_INET, STUB_V4), (socket.AF_INET6, STUB_V6)):
            made.append(_bound(family, socket.SOCK_STREAM, host, 0))
            made[-1].listen(BACKLOG)
        for family, host in ((socket.AF_INET, STUB_V4), (socket.AF_INET6, STUB_V6)):
            made.append(_bound(family, socket.SOCK_DGRAM, host, DNS_PORT))
        made[2].setsockopt(socket.IPPROTO_IP, _IP_PKTINFO, 1)
        made[3].setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RECVPKTINFO, 1)
    except BaseException:
        for each in made:
            each.close()
        raise
    return [each.detach() for each in made]


def _enable_ipv6() -> None:
    for name in ("all", "lo"):
        Path(f"/proc/sys/net/ipv6/conf/{name}/disable_ipv6").write_text("0")


def _bound(
    family: socket.AddressFamily, kind: socket.SocketKind, host: str, port: int
) -> socket.socket:
    made = socket.socket(family, kind | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
    try:
        if family is socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            made.setsockopt(socket.IPPROTO_IPV6, _IPV6_FREEBIND, 1)
        else:
            made.setsockopt(socket.IPPROTO_IP, _IP_FREEBIND, 1)
        if kind is socket.SOCK_STREAM:
            # Connections inherit it, and so keep no port from the container's own servers.
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((host, port))
    except BaseException:
        made.close()
        raise
    return made


def _cookie_here() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as made:
        return _cookie(made.fileno())


def _cookie(fd: int) -> int:
    """The number of the namespace that a socket was made in, unique until the next boot."""
    with socket.socket(fileno=os.dup(fd)) as each:
        raw = each.getsockopt(socket.SOL_SOCKET, _SO_NETNS_COOKIE, 8)
    return int.from_bytes(raw, "little")
