"""Owns one container's way out: its sockets, its connections, and the policy that they obey."""

import asyncio
import ipaddress
import os
import socket
import struct
import time
from collections.abc import Sequence

import structlog

from egress_proxy.capture.namespaces import Captured, Process
from egress_proxy.connection import Connection, Destination, Tools
from egress_proxy.dns import MAX_QUERY_BYTES
from egress_proxy.limits import Bucket
from egress_proxy.names import Address, Name
from egress_proxy.policy import Decision, Policy, Request, decide, may_resolve
from egress_proxy.splicing import readable
from egress_proxy.stub import Stub
from egress_proxy.synthetic import FIRST as FIRST_SYNTHETIC
from egress_proxy.synthetic import NETWORK, Synthetic, is_synthetic
from egress_proxy.traffic import Owner

log = structlog.get_logger(__name__)

DNS_PORT = 53
CHECK_SECONDS = 5.0
EMFILE_PAUSE_SECONDS = 0.2
QUERIES_PER_CONNECTION = 100
_PKTINFO = struct.Struct("=i4s4s")


class Gateway:
    """A captured container. `run` serves it; `stop` ends that."""

    def __init__(
        self,
        tools: Tools,
        captured: Captured,
        process: Process,
        synthetic: Synthetic,
        owner: Owner,
        policies: Sequence[Policy],
    ) -> None:
        self.captured = captured
        self.process = process
        self._tools = tools
        self._synthetic = synthetic
        self._owner = owner
        self._policies = tuple(policies)
        self._connections: set[Connection] = set()
        self._stub = Stub(self, synthetic, tools.recorder, tools.limits)
        self._room = asyncio.Semaphore(tools.limits.connections)
        self._bucket = Bucket(tools.limits.connections_per_second, time.monotonic())
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def owner(self) -> Owner:
        """Whose traffic it is, and under which revision."""
        return self._owner

    @property
    def connections(self) -> int:
        """How many are open."""
        return len(self._connections)

    def decide(self, request: Request) -> Decision:
        """What the policy says now."""
        return decide(self._policies, request)

    def may_resolve(self, name: Name) -> Decision:
        """What the policy says of a name now."""
        return may_resolve(self._policies, name)

    def update(self, owner: Owner, policies: Sequence[Policy]) -> int:
        """Another policy, in force on return; how many connections that cut."""
        self._owner = owner
        self._policies = tuple(policies)
        cut = 0
        for connection in list(self._connections):
            request = connection.request
            if request is not None and not self.decide(request).allowed:
                connection.cut("cut_by_policy")
                cut += 1
        return cut

    def cut_all(self, why: str) -> None:
        """Ends what is open."""
        for connection in list(self._connections):
            connection.cut(why)

    def start(self, tasks: asyncio.TaskGroup) -> None:
        """Serves from now on, in tasks of the group."""
        tcp4, tcp6, udp4, udp6 = (
            socket.socket(fileno=os.dup(fd)) for fd in self.captured.fds()[:4]
        )
        for listener in (tcp4, tcp6):
            self._tasks.append(tasks.create_task(self._accept_for_ever(listener, tasks)))
        for stub in (udp4, udp6):
            self._tasks.append(tasks.create_task(self._answer_for_ever(stub)))
        self._tasks.append(tasks.create_task(self._check_for_ever()))

    async def wait_for_death(self) -> None:
        """Returns when the container's main process has ended."""
        try:
            pidfd = os.pidfd_open(self.process.pid)
        except OSError:
            return
        loop = asyncio.get_running_loop()
        gone = asyncio.Event()
        loop.add_reader(pidfd, gone.set)
        try:
            await gone.wait()
        finally:
            loop.remove_reader(pidfd)
            os.close(pidfd)

    async def stop(self, why: str) -> None:
        """Ends what is open and serves no more. The sockets are let go."""
        self.cut_all(why)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()
        self.captured.close()

    async def _accept_for_ever(self, listener: socket.socket, tasks: asyncio.TaskGroup) -> None:
        with listener:
            while True:
                await readable(listener)
                await self._room.acquire()
                try:
                    await asyncio.sleep(self._bucket.wait_seconds(time.monotonic()))
                    client, _ = listener.accept()
                except BlockingIOError:
                    self._room.release()
                    continue
                except OSError as error:
                    self._room.release()
                    log.warning("not accepted", problem=str(error))
                    await asyncio.sleep(EMFILE_PAUSE_SECONDS)
                    continue
                except BaseException:
                    self._room.release()
                    raise
                tasks.create_task(self._serve(client))

    async def _serve(self, client: socket.socket) -> None:
        try:
            client.setblocking(False)
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            host, port = client.getsockname()[:2]
            address = ipaddress.ip_address(host)
            if port == DNS_PORT:
                await self._serve_queries(client, host)
                return
            connection = Connection(self._tools, self, client, self._destination(address, port))
            self._connections.add(connection)
            try:
                await connection.run()
            finally:
                self._connections.discard(connection)
        except OSError:
            pass  # it is gone already
        finally:
            client.close()
            self._room.release()

    def _destination(self, address: Address, port: int) -> Destination:
        if not is_synthetic(address):
            return Destination(address, port, address)
        name = self._synthetic.name(address)
        if name is not None:
            return Destination(address, port, name, certain=True)
        if int(address) - int(NETWORK.network_address) < FIRST_SYNTHETIC:
            return Destination(address, port, None)  # our own: as a proxy is addressed
        return Destination(address, port, address)

    async def _answer_for_ever(self, stub: socket.socket) -> None:
        with stub:
            while True:
                await readable(stub)
                try:
                    packet, control, _, peer = stub.recvmsg(MAX_QUERY_BYTES + 1, 256)
                    answer = await self._stub.answer(packet, _sent_to(control))
                    if answer is not None:
                        stub.sendmsg([answer], _answer_from(control), 0, peer)
                except OSError:
                    continue  # the asker is gone

    async def _serve_queries(self, client: socket.socket, resolver: str) -> None:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._tools.limits.hello.total_seconds()):
                for _ in range(QUERIES_PER_CONNECTION):
                    length = int.from_bytes(await _exactly(client, 2))
                    answer = await self._stub.answer(await _exactly(client, length), resolver)
                    if answer is None:
                        return
                    await loop.sock_sendall(client, len(answer).to_bytes(2) + answer)
        except (TimeoutError, EOFError):
            pass

    async def _check_for_ever(self) -> None:
        limits = self._tools.limits
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            now = time.monotonic()
            for connection in list(self._connections):
                if now - connection.active > limits.idle.total_seconds():
                    connection.cut("idle")
                elif now - connection.started > limits.absolute.total_seconds():
                    connection.cut("too_long")


async def _exactly(client: socket.socket, count: int) -> bytes:
    """That many bytes. Raises EOFError."""
    loop = asyncio.get_running_loop()
    found = b""
    while len(found) < count:
        data = await loop.sock_recv(client, count - len(found))
        if not data:
            raise EOFError
        found += data
    return found


Control = list[tuple[int, int, bytes]]


def _sent_to(control: Control) -> str:
    for level, _, data in control:
        if level == socket.IPPROTO_IP:
            return socket.inet_ntop(socket.AF_INET, _PKTINFO.unpack(data)[2])
        if level == socket.IPPROTO_IPV6:
            return socket.inet_ntop(socket.AF_INET6, data[:16])
    return ""


def _answer_from(control: Control) -> Control:
    """What makes an answer come from where the query was sent to."""
    for level, kind, data in control:
        if level == socket.IPPROTO_IP:
            return [(level, kind, _PKTINFO.pack(0, _PKTINFO.unpack(data)[2], bytes(4)))]
        if level == socket.IPPROTO_IPV6:
            return [(level, kind, data)]
    return []
