"""Needs root: from inside a namespace, through the proxy, to servers on loopback."""

import asyncio
import socket
import threading
from functools import partial

import pytest

from tests.egress_proxy.hellos import real_hello
from tests.egress_proxy.node import Upstream, dial, get, lookup, node
from workroom.egress.v1 import egress_pb2 as pb

ALERT = b"\x15\x03\x03\x00\x02\x02"
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


@pytest.fixture(scope="module")
async def shared():
    async with node() as made:
        yield made


@pytest.fixture
async def here(shared):
    """The node, with a container that nothing is known of."""
    with_nothing = pb.DetachContainerRequest(container_id="ctr_1")
    await shared.stub.DetachContainer(with_nothing, timeout=10)
    await shared.forget()
    return shared


@pytest.fixture
async def upstream():
    async with Upstream().serving() as made:
        yield made


async def synthetic(here, name):
    code, found = await here.do(lambda: lookup(name))
    assert code == 0
    return found[0]


async def test_an_allowed_name_is_reached_by_its_synthetic_address(here, upstream):
    await here.attach(f"db.test:{upstream.port}", session_id="sess_1")
    address = await synthetic(here, "db.test")
    assert address.startswith("198.18.")
    assert await here.do(lambda: dial(address, upstream.port, b"select 1")) == b"hello"
    assert upstream.received == [b"select 1"]
    record = await here.last()
    assert (record.host, record.port, record.protocol) == ("db.test", upstream.port, "raw")
    assert (record.requested_address, record.dialled_address) == (address, "127.0.0.1")
    assert (record.sent_bytes, record.received_bytes, record.ending) == (8, 5, "closed")
    assert record.decision.effect == pb.EFFECT_ALLOW
    assert record.decision.rule == f"allowed_domains[0] db.test:{upstream.port}"
    assert (record.session_id, record.policy_revision) == ("sess_1", 1)


@pytest.mark.parametrize("resolver", ["198.18.0.1", "8.8.8.8", "2606:4700::1111"])
@pytest.mark.parametrize("tcp", [False, True])
async def test_names_are_answered_by_the_stub_alone(here, resolver, tcp):
    await here.attach("a.test")
    asked = [("a.test", 1), ("a.test", 28), ("a.test", 65), ("evil.test", 1), ("x.a.test", 16)]
    answers = [await here.do(partial(lookup, *each, resolver, tcp)) for each in asked]
    assert [code for code, _ in answers] == [0, 0, 0, 3, 3]
    assert [len(found) for _, found in answers] == [1, 0, 0, 0, 0]
    assert here.resolver.asked == []
    records = await here.records(kinds=[pb.TrafficRecord.KIND_DNS_QUERY])
    assert [(each.host, each.query_type, each.ending) for each in records[-5:]] == [
        ("a.test", "A", "answered"),
        ("a.test", "AAAA", "no_data"),
        ("a.test", "HTTPS", "no_data"),
        ("evil.test", "A", "no_such_name"),
        ("x.a.test", "TXT", "no_such_name"),
    ]


async def test_tls_goes_where_the_server_name_says(here, upstream):
    await here.attach(f"a.test:{upstream.port}")
    for address in ("1.2.3.4", "2606:4700::1111", await synthetic(here, "a.test")):
        hello = real_hello("a.test")
        found = await here.do(
            lambda address=address, hello=hello: dial(address, upstream.port, hello)
        )
        assert found == b"hello"
        assert upstream.received.pop() == hello
        record = await here.last()
        assert (record.host, record.protocol) == ("a.test", "tls")


async def test_a_hello_in_single_bytes_is_put_together(here, upstream):
    await here.attach(f"a.test:{upstream.port}")
    hello = real_hello("a.test")

    def trickle() -> bytes:
        with socket.create_connection(("1.2.3.4", upstream.port), 5) as client:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for byte in hello[:200]:
                client.sendall(bytes([byte]))
            client.sendall(hello[200:])
            return client.recv(100)

    assert await here.do(trickle) == b"hello"
    assert upstream.received[0].startswith(hello[:100])


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (real_hello("evil.test"), "not_allowed"),
        (real_hello(None), "not_allowed"),
        (real_hello("a.test")[:-1] + b"", "hello_cut"),
        (b"\x16\x03\x01\x00\x00", "record_length"),
    ],
)
async def test_tls_elsewhere_gets_an_alert(here, upstream, said, reason):
    await here.attach(f"a.test:{upstream.port}")

    def attempt() -> bytes:
        with socket.create_connection(("1.2.3.4", upstream.port), 5) as client:
            client.sendall(said)
            client.shutdown(socket.SHUT_WR)
            return client.recv(100)

    assert (await here.do(attempt)).startswith(ALERT)
    record = await here.last()
    assert (record.decision.effect, record.decision.reason) == (pb.EFFECT_DENY, reason)
    assert upstream.connections == 0
    assert here.resolver.asked == []


async def test_a_server_name_that_differs_from_the_name_dialled_is_refused(here, upstream):
    await here.attach(f"a.test:{upstream.port}", f"b.test:{upstream.port}")
    address = await synthetic(here, "a.test")
    answer = await here.do(lambda: dial(address, upstream.port, real_hello("b.test")))
    assert answer.startswith(ALERT)
    assert (await here.last()).decision.reason == "name_differs"
    assert upstream.connections == 0


async def test_raw_bytes_to_an_address_are_reset(here, upstream):
    await here.attach(f"a.test:{upstream.port}")
    with pytest.raises(ConnectionResetError):
        await here.do(lambda: dial("1.2.3.4", upstream.port, b"SSH-2.0-x\r\n"))
    record = await here.last()
    assert (record.host, record.decision.reason) == ("1.2.3.4", "not_allowed")


async def test_a_server_that_speaks_first_is_heard(here):
    await here.attach("mail.test:2525", "a.test:2525")
    server = socket.create_server(("127.0.0.1", 2525))
    address = await synthetic(here, "mail.test")
    with server:
        client = asyncio.create_task(here.do(lambda: dial(address, 2525)))
        accepted, _ = await asyncio.to_thread(server.accept)
        accepted.sendall(b"220 hello")
        accepted.close()
        assert await client == b"220 hello"


@pytest.mark.parametrize(
    ("answers", "reason"),
    [
        (["10.0.0.1"], "address_private"),
        (["169.254.169.254"], "address_metadata"),
        (["::ffff:169.254.169.254"], "address_metadata"),
        (["64:ff9b::a00:1"], "address_private"),
        (["127.0.0.1", "10.0.0.1"], "address_private"),
        (["198.18.0.1"], "address_special"),
        (["::1"], "address_loopback"),
    ],
)
async def test_where_a_name_leads_is_checked_before_anything_is_dialled(
    here, upstream, answers, reason
):
    await here.attach(f"a.test:{upstream.port}")
    here.resolver.answers["a.test"] = answers
    answer = await here.do(lambda: dial("1.2.3.4", upstream.port, real_hello("a.test")))
    assert answer.startswith(ALERT)
    record = await here.last()
    assert (record.decision.rule, record.decision.reason) == ("address", reason)
    assert upstream.connections == 0


async def test_loopback_without_an_exception_is_not_dialled(here, upstream):
    here.resolver.answers["a.example"] = ["127.0.0.1"]
    await here.attach(f"a.example:{upstream.port}")
    await here.do(lambda: dial("1.2.3.4", upstream.port, real_hello("a.example")))
    assert (await here.last()).decision.reason == "address_loopback"


async def test_a_server_that_refuses_is_told_at_once(here):
    await here.attach("a.test:9")
    answer = await here.do(lambda: dial("1.2.3.4", 9, real_hello("a.test")))
    assert answer == ALERT + b"\x50"
    assert (await here.last()).ending == "refused_by_server"


async def test_http_is_sent_where_the_host_says(here):
    async with Upstream(ANSWER).serving() as upstream:
        await here.attach(f"a.test:{upstream.port}")
        request = get(f"a.test:{upstream.port}", "X-One: 1", path="/p?q=secret")
        answer = await here.do(lambda: dial("1.2.3.4", upstream.port, request))
        assert answer.startswith(b"HTTP/1.1 200") and answer.endswith(b"ok")
        assert upstream.received[0].startswith(b"GET /p?q=secret HTTP/1.1\r\nHost: a.test")
        record = await here.last()
        assert (record.kind, record.method, record.path, record.status) == (
            pb.TrafficRecord.KIND_REQUEST,
            "GET",
            "/p",
            200,
        )


async def test_every_request_of_a_connection_is_judged(here):
    async with Upstream(ANSWER).serving() as upstream:
        await here.attach(f"a.test:{upstream.port}")
        good = get("a.test").replace(b"Connection: close\r\n", b"")
        answer = await here.do(lambda: dial("1.2.3.4", upstream.port, good + get("evil.test")))
        assert answer.count(b"HTTP/1.1 200") == 1
        assert b"HTTP/1.1 403 Forbidden" in answer
        assert b"Workroom-Egress: not_allowed" in answer
        assert upstream.connections == 1


async def test_rules_see_methods_and_paths_of_plain_http(here):
    async with Upstream(ANSWER).serving() as upstream:
        rules = [
            pb.Rule(
                effect=pb.EFFECT_ALLOW,
                hosts=["a.test"],
                ports=[upstream.port],
                methods=["GET"],
                paths=["/pub/*"],
            )
        ]
        await here.attach(policy=pb.Policy(access=pb.Policy.ACCESS_RESTRICTED, rules=rules))
        results = []
        for method, path in (
            ("GET", "/pub/x"),
            ("POST", "/pub/x"),
            ("GET", "/private"),
            ("GET", "/pub/../private"),
            ("GET", "/pub/%2e%2e/private"),
            ("GET", "/pub%2f..%2fprivate"),
        ):
            request = get("a.test", path=path, method=method)
            answer = await here.do(lambda request=request: dial("1.2.3.4", upstream.port, request))
            results.append(int(answer.split()[1]))
        assert results == [200, 403, 403, 403, 403, 403]
        assert upstream.connections == 1


async def test_connect_opens_a_tunnel_to_what_it_names_alone(here, upstream):
    await here.attach(f"a.test:{upstream.port}", f"b.test:{upstream.port}")

    def connect(target: str, hello: bytes) -> tuple[bytes, bytes]:
        with socket.create_connection(("198.18.0.1", 3128), 5) as client:
            client.sendall(f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n".encode())
            first = client.recv(1000)
            if b" 200 " not in first:
                return first, b""
            client.sendall(hello)
            return first, client.recv(100)

    target = f"a.test:{upstream.port}"
    assert (await here.do(lambda: connect(target, real_hello("a.test"))))[1] == b"hello"
    assert (await here.do(lambda: connect(target, real_hello("b.test"))))[1].startswith(ALERT)
    assert (await here.last()).decision.reason == "name_differs"
    for refused in ("evil.test:443", "a.test:22", "1.2.3.4:443", "127.0.0.1:80", "[::1]:80"):
        first, _ = await here.do(lambda refused=refused: connect(refused, b""))
        assert first.startswith(b"HTTP/1.1 403"), refused
        assert (await here.last()).protocol == "connect"
    nested = b"CONNECT b.test:443 HTTP/1.1\r\nHost: b.test:443\r\n\r\n"
    assert b" 421 " in (await here.do(lambda: connect(target, nested)))[1]
    assert upstream.connections == 1


async def test_a_new_policy_is_in_force_at_once_and_cuts_what_it_forbids(here):
    async with Upstream().serving() as upstream:
        upstream.hold = True
        await here.attach(f"a.test:{upstream.port}", f"b.test:{upstream.port}")
        clients = []
        for name in ("a.test", "b.test"):
            client = here.here.socket()
            hello = real_hello(name)
            await asyncio.to_thread(client.connect, ("1.2.3.4", upstream.port))
            await asyncio.to_thread(client.sendall, hello)
            assert await asyncio.to_thread(client.recv, 100) == b"hello"
            clients.append(client)
        await here.attach(f"b.test:{upstream.port}")
        with pytest.raises(ConnectionResetError):
            await asyncio.to_thread(clients[0].recv, 100)
        clients[1].sendall(b"more")
        answer = await here.do(lambda: dial("1.2.3.4", upstream.port, real_hello("a.test")))
        assert answer.startswith(ALERT)
        await here.stub.DetachContainer(pb.DetachContainerRequest(container_id="ctr_1"), timeout=10)
        with pytest.raises(ConnectionResetError):
            await asyncio.to_thread(clients[1].recv, 100)
        for client in clients:
            client.close()
        with pytest.raises(ConnectionRefusedError):
            await here.do(lambda: dial("1.2.3.4", upstream.port))
        endings = {(each.host, each.ending) for each in await here.records()}
        assert {("a.test", "cut_by_policy"), ("b.test", "detached")} <= endings


async def test_a_megabyte_each_way_arrives_whole(here):
    content = bytes(range(256)) * 8192

    async def echo(reader, writer):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.write_eof()
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    await here.attach(f"a.test:{port}")
    address = await synthetic(here, "a.test")

    def both() -> bytes:
        with socket.create_connection((address, port), 5) as client:

            def send() -> None:
                client.sendall(content)
                client.shutdown(socket.SHUT_WR)

            sender = threading.Thread(target=send)
            sender.start()
            found = b""
            while data := client.recv(65536):
                found += data
            sender.join()
            return found

    assert await here.do(both) == content
    server.close()
    record = await here.last()
    assert (record.sent_bytes, record.received_bytes) == (len(content), len(content))
