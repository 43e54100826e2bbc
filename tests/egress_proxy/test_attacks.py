"""From inside a real container, as its user and as root, against servers on loopback.

Each test asserts what the program is told, that nothing came to a server, and what is recorded.
"""

import json
import socket
from pathlib import Path

import pytest

from tests.container_runtime.fixtures import docker_engine
from tests.container_runtime.node import new_home, node_on
from tests.egress_proxy import attempts
from tests.egress_proxy.hellos import hello, real_hello, records, server_name
from tests.egress_proxy.node import RESTRICTED, Node, Upstream, get, node
from workroom.egress.v1 import egress_pb2 as pb
from workroom.runtime.v1 import executions_pb2 as epb

pytestmark = [pytest.mark.docker, pytest.mark.timeout(120)]

SCRIPT = Path(attempts.__file__).read_bytes()
SERVER = "127.83.12.9"
"""Where the servers listen: an address of loopback that nobody else uses."""
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
ALERT = "\x15\x03\x03\x00\x02\x02\x31"
PROXY = ("198.18.0.1", 3128)


class Attacker:
    """A container under a policy, the servers that it may and may not reach, and what they got."""

    def __init__(self, egress: Node, calls, container_id: str, process) -> None:
        self.egress = egress
        self.container_id = container_id
        self._calls = calls
        self._process = process
        self.user = epb.Command.USER_DEFAULT
        self.web = Upstream(ANSWER)
        self.tls = Upstream(b"hello")

    async def under(self, *allowed: str, policy: pb.Policy | None = None, **more) -> None:
        """Puts the container under a policy."""
        policy = policy or pb.Policy(access=RESTRICTED, allowed_domains=allowed)
        request = pb.AttachContainerRequest(
            container_id=self.container_id, policy=policy, process=self._process, **more
        )
        await self.egress.stub.AttachContainer(request, timeout=10)

    async def does(self, name: str, *arguments):
        """What an attempt inside gives."""
        command = epb.Command(user=self.user)
        command.argv.args.extend(["python3", "-I", "-", name, json.dumps(arguments)])
        start = epb.StartExecutionRequest(container_id=self.container_id, command=command)
        request = epb.RunRequest(start=start, stdin=SCRIPT)
        done = await self._calls.executions.Run(request, timeout=30)
        assert done.stdout.head, done.stderr.head.decode()
        return json.loads(done.stdout.head)

    async def runs(self, script: str, **fields) -> epb.RunResponse:
        """What a shell script inside gives."""
        command = epb.Command(user=self.user, script=script)
        start = epb.StartExecutionRequest(container_id=self.container_id, command=command)
        request = epb.RunRequest(start=start, **fields)
        return await self._calls.executions.Run(request, timeout=60)

    def nothing_arrived(self) -> bool:
        """Whether no server was spoken to, and no name looked up."""
        return not (self.web.connections or self.tls.connections or self.egress.resolver.asked)

    async def reason(self) -> str:
        """Why the last attempt was not let out."""
        record = await self.egress.last()
        assert record.decision.effect == pb.EFFECT_DENY, record
        return record.decision.reason


@pytest.fixture(scope="module")
async def container():
    with new_home() as home:
        async with (
            docker_engine(home) as engine,
            node_on(home, engine) as runtime,
            node() as egress,
        ):
            made = await runtime.calls.create()
            process = pb.ContainerProcess(
                pid=made.main_process.pid, start_ticks=made.main_process.start_ticks
            )
            yield Attacker(egress, runtime.calls, made.id, process)
            await runtime.calls.delete(made.id)


@pytest.fixture(params=["user", "root"])
async def attacker(request, container):
    container.user = epb.Command.USER_ROOT if request.param == "root" else epb.Command.USER_DEFAULT
    detach = pb.DetachContainerRequest(container_id=container.container_id)
    await container.egress.stub.DetachContainer(detach, timeout=10)
    container.web, container.tls = Upstream(ANSWER), Upstream(b"hello")
    await container.egress.forget()
    container.egress.resolver.answers = {
        name: [SERVER]
        for name in ("good.test", "www.good.test", "other.test", "evil.test", "secret.evil.test")
    }
    async with container.web.serving(80, SERVER), container.tls.serving(443, SERVER):
        yield container


def text(raw: bytes) -> str:
    return raw.decode("latin-1")


async def test_programs_reach_what_is_allowed_with_no_settings(attacker):
    await attacker.under("good.test", session_id="sess_1")
    assert await attacker.does("fetch", "http://good.test/page") == [200, "ok"]
    record = await attacker.egress.last()
    assert (record.host, record.port, record.path, record.status) == ("good.test", 80, "/page", 200)
    done = await attacker.runs("curl -s -m 8 http://good.test/; echo; env | grep -i proxy")
    assert done.stdout.head == b"ok\n"


async def test_a_host_that_is_not_the_one_dialled_is_refused(attacker):
    await attacker.under("good.test", "other.test")
    (address,) = await attacker.does("resolve", "good.test", 80)
    answer = await attacker.does("talk", address, 80, text(get("other.test")))
    assert answer.startswith("HTTP/1.1 421")
    assert await attacker.reason() == "name_differs"
    answer = await attacker.does("talk", address, 443, text(real_hello("other.test")))
    assert answer == ALERT
    assert await attacker.reason() == "name_differs"
    assert attacker.nothing_arrived()


async def test_passed_through_traffic_reaches_the_named_host_alone(attacker):
    await attacker.under("good.test")
    answer = await attacker.does("talk", "9.9.9.9", 443, text(real_hello("good.test")))
    assert answer == "hello"
    assert attacker.egress.resolver.asked == ["good.test"]
    record = await attacker.egress.last()
    assert (record.requested_address, record.dialled_address) == ("9.9.9.9", SERVER)


async def test_a_tunnel_carries_only_what_it_was_opened_for(attacker):
    await attacker.under("good.test", "other.test")
    opened = await attacker.does("tunnel", *PROXY, "good.test:443", text(real_hello("other.test")))
    assert " 200 " in opened[0] and opened[1] == ALERT
    assert await attacker.reason() == "name_differs"
    nested = "CONNECT other.test:443 HTTP/1.1\r\nHost: other.test:443\r\n\r\n"
    opened = await attacker.does("tunnel", *PROXY, "good.test:8080", nested)
    assert " 403 " in opened[0]
    assert attacker.nothing_arrived()


@pytest.mark.parametrize(
    "target", ["1.2.3.4:443", f"{SERVER}:443", "[::1]:443", "169.254.169.254:80"]
)
async def test_tunnels_to_addresses_are_refused(attacker, target):
    await attacker.under("good.test")
    opened = await attacker.does("tunnel", *PROXY, target, text(real_hello("good.test")))
    assert opened[0].startswith("HTTP/1.1 403")
    assert await attacker.reason() == "not_allowed"
    assert attacker.nothing_arrived()


@pytest.mark.parametrize(
    "request_text",
    [
        "GET http://evil.test/ HTTP/1.1\r\nHost: good.test\r\n\r\n",
        "GET http://good.test/ HTTP/1.1\r\nHost: evil.test\r\n\r\n",
        "GET http://good.test:81/ HTTP/1.1\r\nHost: good.test\r\n\r\n",
        "GET / HTTP/1.1\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: good.test\r\nHost: evil.test\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: good.test\r\nhOST: good.test\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: good.test, evil.test\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: good.test@evil.test\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: good.test:443@evil.test\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: good.test/evil\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: good.test evil.test\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: good.test:99999\r\n\r\n",
        "GET / HTTP/1.1\r\nHost:\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: evil.test\0.good.test\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: evil.test%00.good.test\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: g\u00f6od.test\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: good.test..\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: 2130706433\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: 0x7f000001\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: 0177.0.0.1\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: 127.1\r\n\r\n",
        "GET /\r\n\r\n",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        "TRACE / HTTP/1.1\r\nHost: good.test\r\n\r\n",
        # framing
        "POST / HTTP/1.1\r\nHost: good.test\r\nContent-Length: 4\r\n"
        "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: good.test\r\nContent-Length: 4\r\nContent-Length: 5\r\n\r\nabcd",
        "POST / HTTP/1.1\r\nHost: good.test\r\nContent-Length: +4\r\n\r\nabcd",
        "POST / HTTP/1.1\r\nHost: good.test\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: good.test\r\nTransfer-Encoding: chunked, identity\r\n\r\n"
        "0\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: good.test\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: good.test\r\nTransfer-Encoding:\x0bchunked\r\n\r\n0\r\n\r\n",
        "POST / HTTP/1.0\r\nHost: good.test\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: good.test\r\n Folded: x\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: good.test\nX: y\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: good.test\r\nX: a\0b\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: good.test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        "Content-Length: 3\r\n\r\nabc",
    ],
)
async def test_requests_that_can_be_read_two_ways_go_nowhere(attacker, request_text):
    await attacker.under("good.test")
    answer = await attacker.does("talk", "1.2.3.4", 80, request_text)
    assert not answer or answer.split()[1][0] in "45", answer
    record = await attacker.egress.last()
    assert record.decision.effect == pb.EFFECT_DENY
    assert attacker.nothing_arrived()


async def test_chunks_that_end_otherwise_do_not_reach_another_request(attacker):
    await attacker.under("good.test")
    head = "POST / HTTP/1.1\r\nHost: good.test\r\nTransfer-Encoding: chunked\r\n\r\n"
    for body in ("3\r\nabcXX0\r\n\r\n", "0x3\r\nabc\r\n0\r\n\r\n", "3;a\nb\r\nabc\r\n0\r\n\r\n"):
        await attacker.does("talk", "1.2.3.4", 80, head + body + text(get("good.test")))
    assert not any(b"GET" in each for each in attacker.web.received)


async def test_each_request_of_a_kept_connection_is_judged(attacker):
    await attacker.under("good.test")
    first = text(get("good.test")).replace("Connection: close\r\n", "")
    answer = await attacker.does("talk", "1.2.3.4", 80, first + text(get("evil.test")))
    assert answer.count("HTTP/1.1 200") == 1 and "HTTP/1.1 403" in answer
    assert await attacker.reason() == "not_allowed"
    assert attacker.egress.resolver.asked == ["good.test"]


@pytest.mark.parametrize("entry", ["tls", "http", "connect", "absolute", "websocket", "ipv6"])
async def test_every_way_out_obeys_the_same_policy(attacker, entry):
    await attacker.under("good.test")
    upgrade = ("Upgrade: websocket", "Connection: Upgrade")
    outcomes = []
    for name in ("evil.test", "good.test"):
        hello_text = text(real_hello(name))
        match entry:
            case "tls":
                answer = await attacker.does("talk", "1.2.3.4", 443, hello_text)
            case "ipv6":
                answer = await attacker.does("talk", "2606:4700::1111", 443, hello_text)
            case "http":
                answer = await attacker.does("talk", "1.2.3.4", 80, text(get(name)))
            case "websocket":
                answer = await attacker.does("talk", "1.2.3.4", 80, text(get(name, *upgrade)))
            case "connect":
                answer = "".join(await attacker.does("tunnel", *PROXY, f"{name}:443", hello_text))
            case _:
                absolute = text(get(name, path=f"http://{name}/"))
                answer = await attacker.does("talk", *PROXY, absolute)
        outcomes.append(answer)
        if name == "evil.test":
            assert attacker.nothing_arrived()
            assert await attacker.reason() == "not_allowed"
    assert outcomes[0] == ALERT or outcomes[0].startswith("HTTP/1.1 403")
    assert outcomes[1].endswith(("hello", "ok"))


async def test_settings_against_proxies_change_nothing(attacker):
    await attacker.under("good.test")
    script = "NO_PROXY='*' no_proxy='*' curl -s -m 8 --noproxy '*' {} http://evil.test/"
    done = await attacker.runs(
        script.format("--resolve evil.test:80:1.2.3.4") + " -w '%{http_code}'"
    )
    assert b"not_allowed" in done.stdout.head and done.stdout.head.endswith(b"403")
    done = await attacker.runs(script.format("-6 --resolve 'evil.test:80:[2606:4700::1]'"))
    assert b"not_allowed" in done.stdout.head
    assert attacker.nothing_arrived()


@pytest.mark.parametrize(
    "name", [b"evil.test\0.good.test", b"evil.test\n.good.test", b"good.test.", b"GOOD%2etest"]
)
async def test_no_server_name_is_read_two_ways(attacker, name):
    await attacker.under("good.test")
    answer = await attacker.does("talk", "1.2.3.4", 443, text(records(hello(server_name(name)))))
    assert answer.startswith(ALERT[:6])
    assert await attacker.reason() == "server_name_malformed"
    assert attacker.nothing_arrived()


@pytest.mark.parametrize(
    "name", ["evilgood.test", "good.test.evil.test", "a.b.good.test.x", "www.good.test"]
)
async def test_a_name_is_matched_by_whole_labels(attacker, name):
    await attacker.under("good.test")
    assert await attacker.does("talk", "1.2.3.4", 443, text(real_hello(name))) == ALERT
    assert await attacker.does("resolve", name, 443) == "gaierror"
    assert attacker.nothing_arrived()


async def test_upper_case_is_the_same_name(attacker):
    await attacker.under("good.test")
    assert await attacker.does("talk", "1.2.3.4", 443, text(real_hello("GOOD.Test"))) == "hello"


@pytest.mark.parametrize(
    ("answers", "reason"),
    [
        (["10.0.0.1"], "address_private"),
        ([SERVER, "192.168.0.1"], "address_private"),
        (["169.254.169.254"], "address_metadata"),
        (["fd00:ec2::254"], "address_metadata"),
        (["::ffff:7f00:1"], "address_loopback"),
        (["2002:a9fe:a9fe::"], "address_metadata"),
        (["168.63.129.16"], "address_metadata"),
    ],
)
async def test_where_a_name_leads_is_no_way_round(attacker, answers, reason):
    await attacker.under("good.test")
    assert await attacker.does("talk", "1.2.3.4", 443, text(real_hello("good.test"))) == "hello"
    attacker.egress.resolver.answers["good.test"] = answers
    assert await attacker.does("talk", "1.2.3.4", 443, text(real_hello("good.test"))) == ALERT
    assert await attacker.reason() == reason
    assert attacker.tls.connections == 1


@pytest.mark.parametrize("address", ["169.254.169.254", "10.0.0.1", "192.0.0.192", "fd00:ec2::254"])
async def test_special_addresses_are_closed_under_every_policy(attacker, address):
    await attacker.under(policy=pb.Policy(access=pb.Policy.ACCESS_ENABLED))
    answer = await attacker.does(
        "talk", address, 80, text(get(f"[{address}]" if ":" in address else address))
    )
    assert answer.startswith("HTTP/1.1 403")
    assert (await attacker.reason()).startswith("address_")
    assert await attacker.does("talk", address, 8080, "x") == "ConnectionResetError"
    assert attacker.nothing_arrived()


async def test_this_nodes_own_addresses_are_closed(attacker):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # sends nothing
        own = probe.getsockname()[0]
    await attacker.under(policy=pb.Policy(access=pb.Policy.ACCESS_ENABLED))
    attacker.egress.resolver.answers["self.example"] = [own]
    assert await attacker.does("talk", "1.2.3.4", 443, text(real_hello("self.example"))) == ALERT
    assert (await attacker.reason()).startswith("address_")


@pytest.mark.parametrize("port", [22, 25, 6379, 8443])
async def test_an_allowed_name_opens_no_other_port(attacker, port):
    await attacker.under("good.test")
    (address,) = await attacker.does("resolve", "good.test", port)
    assert await attacker.does("talk", address, port, "x") == "ConnectionResetError"
    assert await attacker.reason() == "not_allowed"
    assert attacker.nothing_arrived()


async def test_nothing_leaves_by_names(attacker):
    await attacker.under("good.test")
    assert await attacker.does("resolve", "secret.evil.test", 443) == "gaierror"
    assert await attacker.does("resolve", "good.test", 443) != "gaierror"
    query = "00070100000100000000000006736563726574046576696c04746573740000100001"
    for resolver in ("198.18.0.1", "8.8.8.8", "2606:4700::1111"):
        answer = await attacker.does("datagram", resolver, 53, text(bytes.fromhex(query)))
        assert answer[7] == "3"
    assert attacker.nothing_arrived()
    kinds = [pb.TrafficRecord.KIND_DNS_QUERY]
    found = await attacker.egress.records(kinds=kinds, effects=[pb.EFFECT_DENY])
    assert {"secret.evil.test"} <= {each.host for each in found}


@pytest.mark.parametrize("name", ["dns.google", "cloudflare-dns.com", "dns.quad9.net"])
async def test_resolvers_over_https_are_closed_unless_named(attacker, name):
    await attacker.under(policy=pb.Policy(access=pb.Policy.ACCESS_ENABLED))
    assert await attacker.does("talk", "8.8.8.8", 443, text(real_hello(name))) == ALERT
    assert await attacker.reason() == "resolver_not_named"
    assert await attacker.does("talk", "8.8.8.8", 853, text(real_hello("good.test"))) == ALERT
    assert attacker.nothing_arrived()


@pytest.mark.parametrize("host", ["1.1.1.1", "2606:4700::1111"])
async def test_udp_gets_nowhere(attacker, host):
    await attacker.under(policy=pb.Policy(access=pb.Policy.ACCESS_ENABLED))
    for port in (443, 123, 3478):
        assert await attacker.does("datagram", host, port) == "ConnectionRefusedError"


async def test_sockets_of_other_kinds_cannot_be_made(attacker):
    await attacker.under("good.test")
    for family, kind, protocol in (
        (17, 3, 0),  # packets
        (2, 3, 1),  # raw ICMP
        (10, 3, 58),
        (40, 1, 0),  # vsock
        (31, 3, 0),  # Bluetooth
        (29, 3, 1),  # CAN
        (2, 5, 132),  # SCTP
        (2, 6, 33),  # DCCP
    ):
        assert await attacker.does("make_socket", family, kind, protocol) != "made"
    assert await attacker.does("links") == ["lo"]
    done = await attacker.runs(
        "ip link add d0 type dummy 2>&1 || echo refused; "
        "ip route del local default dev lo table local 2>&1 || echo refused"
    )
    assert b"refused" in done.stdout.head or done.execution.exited.code


async def test_no_socket_of_the_host_is_within_reach(attacker):
    await attacker.under("good.test")
    found = await attacker.does("sockets")
    assert not [path for path in found if "docker" in path or "containerd" in path]


@pytest.mark.parametrize("port", [80, 443, 3000, 5432, 8080])
async def test_the_containers_own_servers_stay_its_own(attacker, port):
    await attacker.under("good.test")
    for host in ("0.0.0.0", "127.0.0.1"):
        elsewhere, own = await attacker.does("serve", host, port)
        assert own == "alone" and elsewhere in ("ConnectionResetError", ALERT), elsewhere
    assert (await attacker.egress.last()).port == port


async def test_our_places_cannot_be_taken(attacker):
    await attacker.under("good.test")
    kind = int(socket.SOCK_DGRAM)
    assert await attacker.does("take", "198.18.0.1", 53, kind) == "OSError"
    assert await attacker.does("take", "0.0.0.0", 53, kind) == "OSError"


async def test_without_a_policy_everything_is_closed(attacker):
    for said in (text(real_hello("good.test")), text(get("good.test"))):
        answer = await attacker.does("talk", "1.2.3.4", 443, said)
        assert answer in ("ConnectionRefusedError", "OSError")
    assert await attacker.does("resolve", "good.test", 443) == "gaierror"
    await attacker.under(policy=pb.Policy(access=RESTRICTED))
    assert await attacker.does("talk", "1.2.3.4", 443, text(real_hello("good.test"))) == ALERT
    await attacker.under(policy=pb.Policy())
    assert await attacker.does("talk", "1.2.3.4", 443, text(real_hello("good.test"))) == ALERT
    assert await attacker.reason() == "access_disabled"
    assert attacker.nothing_arrived()


async def test_what_must_be_asked_about_is_closed(attacker):
    rule = pb.Rule(effect=pb.EFFECT_ASK, hosts=["good.test"])
    await attacker.under(policy=pb.Policy(access=RESTRICTED, rules=[rule]))
    assert await attacker.does("talk", "1.2.3.4", 443, text(real_hello("good.test"))) == ALERT
    record = await attacker.egress.last()
    assert (record.decision.effect, record.decision.reason) == (pb.EFFECT_ASK, "approval_needed")
    assert attacker.nothing_arrived()


async def test_a_bound_cannot_be_widened(attacker):
    bound = pb.Policy(access=RESTRICTED, allowed_domains=["good.test"])
    await attacker.under("good.test", "evil.test", bound=bound)
    assert await attacker.does("talk", "1.2.3.4", 443, text(real_hello("evil.test"))) == ALERT
    record = await attacker.egress.last()
    assert record.decision.rule == "bound.default"
    assert attacker.nothing_arrived()


async def test_an_encrypted_hello_goes_where_its_outer_name_says(attacker):
    await attacker.under("good.test")
    outer = records(hello(server_name(b"good.test"), b"\xfe\x0d\x00\x04abcd"))
    assert await attacker.does("talk", "1.2.3.4", 443, text(outer)) == "hello"
    assert attacker.egress.resolver.asked == ["good.test"]


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (b"\x80\x2e\x01\x00\x02\x00\x15", "not_tls"),
        (records(hello(server_name(b"good.test", b"evil.test"))), "server_name_twice"),
        (records(hello(server_name(b"good.test"), server_name(b"evil.test"))), "extension_twice"),
        (records(hello(server_name(b""))), "server_name_malformed"),
        (records(hello(server_name(b"1.2.3.4"))), "server_name_malformed"),
        (records(hello(server_name(b"good.test"), pad=40000)), "hello_too_large"),
        (b"SSH-2.0-x\r\n", "not_tls"),
        (b"\x00\x00\x00\x08\x04\xd2\x16\x2f", "not_tls"),
    ],
)
async def test_odd_hellos_go_nowhere(attacker, said, reason):
    await attacker.under("good.test")
    answer = await attacker.does("talk", "1.2.3.4", 443, text(said))
    assert answer == ALERT or answer.endswith("Error")
    assert await attacker.reason() == reason
    assert attacker.nothing_arrived()


async def test_a_hello_in_many_records_is_understood(attacker):
    await attacker.under("good.test")
    whole = hello(server_name(b"good.test"), pad=20000)
    assert await attacker.does("talk", "1.2.3.4", 443, text(records(whole, 1000))) == "hello"


async def test_only_the_upgrade_to_websocket_is_passed_on(attacker):
    await attacker.under("good.test")
    fields = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABk")
    request = text(get("good.test", *fields)).replace("Connection: close\r\n", "")
    await attacker.does("talk", "1.2.3.4", 80, request + text(get("good.test")))
    assert attacker.web.received
    assert b"pgrade" not in attacker.web.received[0] and b"ettings" not in attacker.web.received[0]


async def test_fields_named_by_connection_and_trailers_are_dropped(attacker):
    await attacker.under("good.test")
    request = (
        "POST / HTTP/1.1\r\nHost: good.test\r\nConnection: close, X-Secret\r\nX-Secret: 1\r\n"
        "Proxy-Authorization: Basic x\r\nTransfer-Encoding: chunked\r\n\r\n"
        "2\r\nab\r\n0\r\nHost: evil.test\r\nAuthorization: x\r\n\r\n"
    )
    assert (await attacker.does("talk", "1.2.3.4", 80, request)).endswith("ok")
    (received,) = attacker.web.received
    assert b"ecret" not in received and b"evil" not in received and b"uthorization" not in received
