"""A proxy in this process with a helper beside it, a container's namespace, and upstreams."""

import asyncio
import contextlib
import ipaddress
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from egress_proxy.__main__ import running
from egress_proxy.config import Config
from egress_proxy.limits import Limits
from egress_proxy.names import Address
from tests.egress_proxy.namespaces import Inside, helper, inside, short_folder, until
from workroom.egress.v1 import egress_pb2 as pb
from workroom.egress.v1 import egress_pb2_grpc as rpc
from workroom.pages import token_for
from workroom.rpc.channel import open_channel, translate_errors

T = TypeVar("T")

RESTRICTED = pb.Policy.ACCESS_RESTRICTED
EXCEPTIONS = ("**.test=127.0.0.0/8",)
LOOPBACK = "127.0.0.1"


class ScriptedResolver:
    """Answers from a table, and remembers who asked for what."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.answers: dict[str, Sequence[str]] = {}

    async def lookup(self, name: str) -> Sequence[Address]:
        self.asked.append(name)
        found = self.answers.get(name, (LOOPBACK,) if name.endswith(".test") else ())
        if not found:
            raise OSError("no such name")
        return [ipaddress.ip_address(each) for each in found]


class Upstream:
    """A server on loopback that keeps what it is sent and says `reply` to each connection."""

    def __init__(self, reply: bytes = b"hello") -> None:
        self.reply = reply
        self.connections = 0
        self.received: list[bytes] = []
        self.port = 0
        self.hold = False

    @contextlib.asynccontextmanager
    async def serving(self, port: int = 0, host: str = LOOPBACK) -> AsyncIterator["Upstream"]:
        server = await asyncio.start_server(self._serve, host, port)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        place = len(self.received)
        self.received.append(b"")
        try:
            self.received[place] += await reader.read(65536)
            writer.write(self.reply)
            await writer.drain()
            while self.hold and (data := await reader.read(65536)):
                self.received[place] += data
            writer.write_eof()
        except OSError:
            pass
        finally:
            writer.close()


class Node:
    """What a test talks to."""

    def __init__(self, stub: Any, here: Inside, resolver: ScriptedResolver, folder: Path) -> None:
        self.folder = folder
        self.stub = stub
        self.here = here
        self.resolver = resolver
        self._since = ""

    async def attach(self, *allowed: str, container_id: str = "ctr_1", **more: Any) -> Any:
        """Attaches the namespace; restricted to what is allowed unless a policy is given."""
        policy = more.pop("policy", None) or pb.Policy(access=RESTRICTED, allowed_domains=allowed)
        process = pb.ContainerProcess(
            pid=self.here.process.pid, start_ticks=self.here.process.start_ticks
        )
        with translate_errors():
            request = pb.AttachContainerRequest(
                container_id=container_id, policy=policy, process=process, **more
            )
            return (await self.stub.AttachContainer(request, timeout=10)).attachment

    async def do(self, work: Callable[[], T]) -> T:
        """Runs code in the namespace."""
        return await self.here.do(work)

    async def forget(self) -> None:
        """Leaves out, from here on, what was recorded until now."""
        self.resolver.asked.clear()
        self.resolver.answers.clear()
        if found := await self.records():
            self._since = token_for("traffic", found[-1].id)

    async def records(self, **wanted: Any) -> list[pb.TrafficRecord]:
        """What was recorded."""
        found: list[pb.TrafficRecord] = []
        token = self._since
        while True:
            request = pb.ListTrafficRequest(
                page_size=100, page_token=token, filter=pb.TrafficFilter(**wanted)
            )
            with translate_errors():
                page = await self.stub.ListTraffic(request, timeout=10)
            found += page.records
            token = page.next_page_token
            if not token:
                return found

    async def last(self, seconds: float = 5) -> pb.TrafficRecord:
        """The newest record that is no DNS query, once it has ended."""
        kinds = [pb.TrafficRecord.KIND_CONNECTION, pb.TrafficRecord.KIND_REQUEST]
        async with asyncio.timeout(seconds):
            while True:
                found = await self.records(kinds=kinds)
                if found and found[-1].state == pb.TrafficRecord.STATE_ENDED:
                    return found[-1]
                await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def node(
    *,
    exceptions: Sequence[str] = EXCEPTIONS,
    limits: Limits | None = None,
    folder: Path | None = None,
    here: Inside | None = None,
) -> AsyncIterator[Node]:
    """A node with one container's namespace. Needs root."""
    with contextlib.ExitStack() as stack:
        if folder is None:
            folder = stack.enter_context(short_folder())
            (folder / "run").mkdir()
            stack.enter_context(helper(folder / "run" / "egress-helper.sock"))
        await until((folder / "run" / "egress-helper.sock").exists)
        here = here or stack.enter_context(inside())
        resolver = ScriptedResolver()
        config = Config(home=folder, exceptions=tuple(exceptions))
        async with (
            running(config, resolver=resolver, limits=limits) as server,
            open_channel(server.address) as channel,
        ):
            yield Node(rpc.EgressServiceStub(channel), here, resolver, folder)


def lookup(name: str, kind: int = 1, resolver: str = "198.18.0.1", tcp: bool = False) -> Any:
    """Asks the stub from inside: the answer's code, and its addresses."""
    labels = b"".join(bytes([len(label)]) + label for label in name.encode().split(b"."))
    packet = b"\0\7\1\0\0\1\0\0\0\0\0\0" + labels + b"\0" + kind.to_bytes(2) + b"\0\1"
    family = socket.AF_INET6 if ":" in resolver else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM if tcp else socket.SOCK_DGRAM) as client:
        client.settimeout(5)
        client.connect((resolver, 53))
        client.send((len(packet).to_bytes(2) if tcp else b"") + packet)
        answer = client.recv(4096)[2 if tcp else 0 :]
    found = [socket.inet_ntoa(answer[-4:])] if answer[7] else []
    return answer[3] & 15, found


def dial(host: str, port: int, said: bytes = b"", count: int = 65536) -> bytes:
    """Connects from inside, says something, and reads to the end. Raises OSError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as client:
        client.settimeout(8)
        client.connect((host, port))
        if said:
            client.sendall(said)
        found = b""
        while data := client.recv(count):
            found += data
        return found


def get(host: str, *more: str, path: str = "/", method: str = "GET") -> bytes:
    """A plain HTTP request."""
    lines = [f"{method} {path} HTTP/1.1", f"Host: {host}", "Connection: close", *more]
    return "\r\n".join([*lines, "", ""]).encode()
