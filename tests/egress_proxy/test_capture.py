"""Needs root: namespaces are made, entered and steered for real; nothing leaves them."""

import errno
import os
import socket

import pytest

from egress_proxy.capture.handover import CaptureUnavailable, Handover, WrongProcess
from egress_proxy.capture.namespaces import (
    STUB_V4,
    Namespace,
    NotThatContainer,
    Process,
    start_ticks,
)
from tests.egress_proxy.namespaces import children, helper, inside, kill, short_folder, until

V4, V6 = socket.AF_INET, socket.AF_INET6


@pytest.fixture
def here():
    with inside() as made:
        yield made


@pytest.fixture
def captured(here):
    namespace = Namespace.of(here.process, ())
    held = namespace.capture()
    yield held
    held.close()
    namespace.close()


def listener(fd: int) -> socket.socket:
    made = socket.socket(fileno=os.dup(fd))
    made.settimeout(5)
    return made


@pytest.mark.parametrize("port", [1, 22, 53, 80, 443, 8443, 65535])
@pytest.mark.parametrize(
    ("family", "host"),
    [(V4, "1.1.1.1"), (V4, "169.254.169.254"), (V4, "198.18.0.7"), (V6, "2606:4700::1")],
)
def test_every_port_of_every_address_comes_to_the_listener(here, captured, family, host, port):
    with (
        listener(captured.tcp4 if family is V4 else captured.tcp6) as ours,
        here.socket(family) as client,
    ):
        client.connect((host, port))
        accepted, peer = ours.accept()
        with accepted:
            assert accepted.getsockname()[:2] == (host, port)
            assert peer[0] == ("127.0.0.1" if family is V4 else "::1")


@pytest.mark.parametrize("port", [80, 443, 3000, 5432, 8080])
@pytest.mark.parametrize("bound", ["0.0.0.0", "127.0.0.1"])
def test_the_containers_own_servers_answer_on_loopback_and_nowhere_else(
    here, captured, bound, port
):
    with here.socket() as server, here.socket() as client, here.socket() as stranger:
        server.bind((bound, port))
        server.listen()
        client.connect(("127.0.0.1", port))
        server.accept()[0].close()
        stranger.connect(("1.1.1.1", port))
        with listener(captured.tcp4) as ours:
            ours.accept()[0].close()
        server.settimeout(0)
        with pytest.raises(BlockingIOError):
            server.accept()


def test_an_open_connection_keeps_no_port_from_the_containers_servers(here, captured):
    with listener(captured.tcp4) as ours, here.socket() as client, here.socket() as server:
        client.connect(("1.1.1.1", 80))
        accepted, _ = ours.accept()
        with accepted:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            server.bind(("0.0.0.0", 80))
            server.listen()


@pytest.mark.parametrize(("family", "host"), [(V4, "127.0.0.1"), (V6, "::1")])
def test_loopback_without_a_server_is_refused(here, captured, family, host):
    with here.socket(family) as client, pytest.raises(ConnectionRefusedError):
        client.connect((host, 80))


def test_the_listeners_own_port_on_loopback_is_refused(here, captured):
    with listener(captured.tcp4) as ours, here.socket() as client:
        port = ours.getsockname()[1]
        with pytest.raises(ConnectionRefusedError):
            client.connect(("127.0.0.1", port))


def test_nobody_takes_the_place_of_our_sockets(here, captured):
    with listener(captured.tcp4) as ours:
        places = [(socket.SOCK_STREAM, ours.getsockname()[1]), (socket.SOCK_DGRAM, 53)]
    for kind, port in places:
        with here.socket(V4, kind) as thief:
            thief.setsockopt(
                socket.SOL_SOCKET, socket.SO_REUSEADDR, int(kind is not socket.SOCK_DGRAM)
            )
            thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            with pytest.raises(OSError) as caught:
                thief.bind((STUB_V4, port))
            assert caught.value.errno == errno.EADDRINUSE


@pytest.mark.parametrize(("family", "host"), [(V4, "8.8.8.8"), (V6, "2606:4700::1")])
@pytest.mark.parametrize("port", [443, 123, 5353])
def test_udp_is_refused_at_once(here, captured, family, host, port):
    with here.socket(family, socket.SOCK_DGRAM) as client:
        client.connect((host, port))
        client.send(b"x")
        with pytest.raises(ConnectionRefusedError):
            client.recv(1)


def test_queries_to_any_resolver_come_to_the_stub(here, captured):
    for family, host, fd in (
        (V4, "8.8.8.8", captured.udp4),
        (V4, STUB_V4, captured.udp4),
        (V6, "2606:4700::1", captured.udp6),
    ):
        with here.socket(family, socket.SOCK_DGRAM) as client, listener(fd) as ours:
            client.sendto(b"query", (host, 53))
            assert ours.recv(100) == b"query"


def test_without_holders_everything_is_refused(here):
    namespace = Namespace.of(here.process, ())
    namespace.capture().close()
    namespace.close()
    with here.socket() as client, pytest.raises(ConnectionRefusedError):
        client.connect(("1.1.1.1", 443))


def test_the_hosts_own_network_is_no_containers():
    own = Process(os.getpid(), start_ticks(os.getpid()))
    with pytest.raises(NotThatContainer, match="host"):
        Namespace.of(own, ())


def test_another_process_with_the_number_is_not_taken_for_it(here):
    with pytest.raises(NotThatContainer, match="another one"):
        Namespace.of(Process(here.process.pid, here.process.start_ticks - 1), ())
    here.kill()
    with pytest.raises(NotThatContainer):
        Namespace.of(here.process, ())


async def test_a_namespace_has_one_container(here):
    with short_folder() as folder, helper(folder / "helper.sock"):
        handover = Handover(folder / "helper.sock")
        await until(handover.available)
        (await handover.capture("one", here.process)).close()
        with pytest.raises(WrongProcess, match="another container"):
            await handover.capture("two", here.process)
        assert await handover.held() == ["one"]
        handover.close()


async def test_the_helper_keeps_what_the_proxy_lost(here):
    with short_folder() as folder, helper(folder / "helper.sock"):
        first = Handover(folder / "helper.sock")
        await until(first.available)
        (await first.capture("one", here.process)).close()
        first.close()
        with here.socket() as client:
            client.connect(("1.1.1.1", 443))
            again = Handover(folder / "helper.sock")
            held = await again.capture("one", here.process)
            with listener(held.tcp4) as ours:
                accepted, _ = ours.accept()
                with accepted:
                    assert accepted.getsockname() == ("1.1.1.1", 443)
            held.close()
            await again.release("one")
            assert await again.held() == []
            again.close()
        with here.socket() as client, pytest.raises(ConnectionRefusedError):
            client.connect(("1.1.1.1", 443))


async def test_a_helper_that_is_started_again_adopts_what_the_proxy_holds(here):
    with short_folder() as folder, helper(folder / "helper.sock") as process:
        handover = Handover(folder / "helper.sock")
        await until(handover.available)
        held = await handover.capture("one", here.process)
        handover.adopting(lambda: [("one", here.process, held)])
        kill(children(process.pid)[0])
        assert await handover.held() == ["one"]
        held.close()
        with here.socket() as client:
            client.connect(("1.1.1.1", 443))
        handover.close()


async def test_the_helper_adopts_no_sockets_of_another_namespace(here):
    with inside() as other, short_folder() as folder, helper(folder / "helper.sock"):
        handover = Handover(folder / "helper.sock")
        await until(handover.available)
        held = await handover.capture("one", here.process)
        await handover.release("one")
        handover.close()
        handover.adopting(lambda: [("two", other.process, held)])
        assert await handover.held() == []
        held.close()
        handover.close()


async def test_a_dead_container_is_let_go(here):
    with short_folder() as folder, helper(folder / "helper.sock"):
        handover = Handover(folder / "helper.sock")
        await until(handover.available)
        (await handover.capture("one", here.process)).close()
        here.kill()
        while await handover.held():
            pass
        handover.close()


async def test_without_a_helper_capture_says_so(tmp_path):
    handover = Handover(tmp_path / "none.sock")
    assert not handover.available()
    with pytest.raises(CaptureUnavailable):
        await handover.capture("one", Process(1, 1))
