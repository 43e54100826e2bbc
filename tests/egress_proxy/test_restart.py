"""Either side may go away: what it laid is taken up again, and nothing leaks meanwhile."""

import asyncio
import contextlib
import os
import signal
import socket
import sys
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest

from egress_proxy.limits import Limits
from tests.egress_proxy.hellos import real_hello
from tests.egress_proxy.namespaces import children, helper, inside, kill, short_folder, until
from tests.egress_proxy.node import Upstream, dial, lookup, node
from workroom.egress.v1 import egress_pb2 as pb
from workroom.egress.v1 import egress_pb2_grpc as rpc
from workroom.rpc.channel import open_channel


@pytest.fixture
def folder():
    with short_folder() as made:
        (made / "run").mkdir()
        yield made


async def test_a_proxy_that_comes_back_serves_containers_as_before(folder):
    with helper(folder / "run" / "egress-helper.sock"), inside() as here:
        async with Upstream().serving() as upstream:
            allowed = f"db.test:{upstream.port}"
            async with node(folder=folder, here=here) as first:
                await first.attach(allowed)
                code, (address,) = await first.do(lambda: lookup("db.test"))
            waiting = here.socket()
            await asyncio.to_thread(waiting.connect, (address, upstream.port))
            assert upstream.connections == 0
            async with node(folder=folder, here=here):
                await asyncio.to_thread(waiting.sendall, b"said while nobody listened")
                assert await asyncio.to_thread(waiting.recv, 100) == b"hello"
                found = await asyncio.to_thread(
                    here.run, lambda: dial(address, upstream.port, b"again")
                )
                assert found == b"hello"
            waiting.close()


async def test_a_helper_that_comes_back_adopts_and_connections_go_on(folder):
    with helper(folder / "run" / "egress-helper.sock") as process, inside() as here:
        async with Upstream().serving() as upstream, node(folder=folder, here=here) as made:
            upstream.hold = True
            await made.attach(f"a.test:{upstream.port}")
            client = here.socket()
            await asyncio.to_thread(client.connect, ("1.2.3.4", upstream.port))
            await asyncio.to_thread(client.sendall, real_hello("a.test"))
            assert await asyncio.to_thread(client.recv, 100) == b"hello"
            (child,) = children(process.pid)
            kill(child)
            await until(lambda: children(process.pid) not in ([], [child]))
            client.sendall(b"more")
            await until(lambda: upstream.received[0].endswith(b"more"))
            upstream.hold = False
            client.close()
            answer = await made.do(lambda: dial("1.2.3.4", upstream.port, real_hello("a.test")))
            assert answer == b"hello"


async def test_a_container_that_ends_is_let_go(folder):
    with helper(folder / "run" / "egress-helper.sock"), inside() as here:
        async with node(folder=folder, here=here) as made:
            assert (await made.attach("a.test")).captured
            here.kill()
            request = pb.GetAttachmentRequest(container_id="ctr_1")
            async with asyncio.timeout(5):
                while (await made.stub.GetAttachment(request, timeout=5)).attachment.captured:
                    pass


async def test_more_connections_than_allowed_wait_for_room(folder):
    limits = Limits(connections=2)
    with helper(folder / "run" / "egress-helper.sock"), inside() as here:
        async with (
            Upstream().serving() as upstream,
            node(folder=folder, here=here, limits=limits) as made,
        ):
            upstream.hold = True
            await made.attach(f"a.test:{upstream.port}")
            clients = [here.socket() for _ in range(3)]
            for client in clients:
                await asyncio.to_thread(client.connect, ("1.2.3.4", upstream.port))
                await asyncio.to_thread(client.sendall, real_hello("a.test"))
            for client in clients[:2]:
                assert await asyncio.to_thread(client.recv, 100) == b"hello"
            assert upstream.connections == 2
            clients[0].close()
            assert await asyncio.to_thread(clients[2].recv, 100) == b"hello"
            for client in clients[1:]:
                client.close()


async def test_a_client_that_says_nothing_is_not_waited_for(folder):
    limits = Limits(hello=timedelta(milliseconds=200), first_byte=timedelta(milliseconds=100))
    with helper(folder / "run" / "egress-helper.sock"), inside() as here:
        async with node(folder=folder, here=here, limits=limits) as made:
            await made.attach("a.test")
            for port, reason in ((443, "silent"), (22, "not_allowed")):
                with pytest.raises(ConnectionResetError):
                    await made.do(partial(dial, "1.2.3.4", port))
                assert (await made.last()).decision.reason == reason


def status_of(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return dict(line.split(":\t", 1) for line in lines if ":\t" in line)


async def test_the_proxys_process_has_no_rights_and_its_helper_outlives_it(folder):
    environ = {**os.environ, "WORKROOM_HOME": str(folder)}
    pids = set()
    with inside() as here:
        process_message = pb.ContainerProcess(
            pid=here.process.pid, start_ticks=here.process.start_ticks
        )
        for round_number in range(2):
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "egress_proxy", env=environ, stderr=asyncio.subprocess.DEVNULL
            )
            try:
                async with (
                    asyncio.timeout(25),
                    open_channel(f"unix:{folder}/run/egress.sock") as channel,
                ):
                    stub = rpc.EgressServiceStub(channel)
                    request = pb.AttachContainerRequest(
                        container_id="ctr_1",
                        policy=pb.Policy(access=pb.Policy.ACCESS_ENABLED),
                        process=process_message,
                    )
                    attached = await stub.AttachContainer(request, wait_for_ready=True)
                    assert attached.attachment.captured
                    assert attached.attachment.revision == 1
                status = status_of(process.pid)
                assert {int(status[name], 16) for name in ("CapEff", "CapPrm", "CapBnd")} == {0}
                assert status["NoNewPrivs"] == "1"
                pids |= set(_helpers(folder))
            finally:
                process.send_signal(signal.SIGKILL)
                await process.wait()
            with here.socket() as client:  # held open by the helper: nobody else could take it
                client.connect(("1.2.3.4", 443))
                client.settimeout(0.2)
                with contextlib.suppress(socket.timeout):
                    assert client.recv(1) == b"", round_number
        assert len(pids) == 2  # one that keeps the other alive
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _helpers(folder: Path) -> list[int]:
    found = []
    for place in Path("/proc").iterdir():
        if place.name.isdecimal():
            with contextlib.suppress(OSError):
                line = (place / "cmdline").read_bytes()
                if f"{folder}/run/egress-helper.sock".encode() in line:
                    found.append(int(place.name))
    return found
