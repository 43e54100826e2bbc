import asyncio
from datetime import timedelta

import grpc
import pytest

from tests.workroom.rpc.echo import SERVICE, Caller, Echo, echoing, text
from workroom.errors import Draining, RemoteError
from workroom.paths import UnusablePath
from workroom.rpc.address import BadAddress, TcpAddress, UnixAddress, parse_address
from workroom.rpc.auth import token_verifier
from workroom.rpc.channel import BadChannel, open_channel, translate_errors
from workroom.rpc.server import Listener, serving
from workroom.rpc.telemetry import TraceContext, tracing
from workroom.rpc.tls import ClientTls


async def returning(request, context):
    return request


async def sent_metadata(request, context):
    pairs = sorted(f"{key}={value}" for key, value in context.invocation_metadata())
    return text("\n".join(pairs))


async def test_proxy_of_the_environment_is_not_used_for_this_machine(tmp_path, monkeypatch):
    for name in ("http_proxy", "https_proxy", "grpc_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    for name in ("no_proxy", "NO_PROXY", "no_grpc_proxy"):
        monkeypatch.delenv(name, raising=False)
    listeners = [
        Listener("127.0.0.1:0", verifier=token_verifier("t")),
        Listener(f"unix:{tmp_path}/run/s.sock"),
    ]
    async with serving(
        [Echo(unary_unary=returning).register], listeners, services=[SERVICE]
    ) as server:
        port = server.addresses[0].rpartition(":")[2]
        for address in (*server.addresses, f"localhost:{port}"):
            async with open_channel(address, key="t") as channel:
                assert (await Caller(channel).unary_unary(text("a"), timeout=5)).value == "a"


async def test_call_carries_trace_request_id_and_key(tmp_path):
    async with echoing(tmp_path, unary_unary=sent_metadata, channel={"key": "the-key"}) as caller:
        trace = TraceContext.new()
        with tracing(trace, "request-1"):
            sent = (await caller.unary_unary(text(""), timeout=5)).value.splitlines()
        assert "authorization=Bearer the-key" in sent
        assert "x-request-id=request-1" in sent
        assert f"traceparent={trace.traceparent}" in sent
        sent = (await caller.unary_unary(text(""), timeout=5)).value
        assert "x-request-id=req_" in sent
        assert "traceparent=00-" in sent


async def test_metadata_of_the_caller_goes_before_ours(tmp_path):
    async with echoing(tmp_path, unary_unary=sent_metadata, channel={"key": "the-key"}) as caller:
        given = grpc.aio.Metadata(("authorization", "Bearer other"), ("x-more", "1"))
        sent = (await caller.unary_unary(text(""), metadata=given, timeout=5)).value.splitlines()
        assert [line for line in sent if line.startswith("authorization=")] == [
            "authorization=Bearer other"
        ]
        assert "x-more=1" in sent


async def test_default_timeout_bounds_unary_calls_alone(tmp_path):
    async def hang(request, context):
        await asyncio.Event().wait()

    async def stream(request, context):
        yield text(str(context.time_remaining()))

    settings = {"default_timeout": timedelta(seconds=0.2)}
    async with echoing(tmp_path, unary_unary=hang, unary_stream=stream, channel=settings) as caller:
        with pytest.raises(RemoteError) as caught, translate_errors():
            await caller.unary_unary(text(""))
        assert caught.value.code is grpc.StatusCode.DEADLINE_EXCEEDED
        assert (await caller.unary_stream(text("")).read()).value == "None"


async def test_restarted_server_is_found_again_soon(tmp_path):
    address = f"unix:{tmp_path}/run/echo.sock"
    async with open_channel(address) as channel:
        caller = Caller(channel)
        with pytest.raises(RemoteError) as caught, translate_errors():
            await caller.unary_unary(text("x"), timeout=5)
        assert caught.value.code is grpc.StatusCode.UNAVAILABLE
        for _ in range(2):
            async with echoing(tmp_path, unary_unary=returning):
                answer = await caller.unary_unary(text("x"), timeout=5, wait_for_ready=True)
                assert answer.value == "x"


@pytest.mark.parametrize("style", ["iterator", "write", "half_close"])
@pytest.mark.parametrize("kind", ["stream_stream", "stream_unary"])
async def test_status_is_not_lost_when_the_client_is_writing(tmp_path, kind, style):
    async def refuse(requests, context):
        raise Draining("stopping")

    async def messages():
        for _ in range(20):
            yield text("x" * 10_000)

    async def call(caller):
        if style == "iterator":
            begun = getattr(caller, kind)(messages(), timeout=5)
        else:
            begun = getattr(caller, kind)(timeout=5)
            if style == "write":
                try:
                    while True:
                        await begun.write(text("x" * 10_000))
                except asyncio.InvalidStateError:
                    pass  # the call has ended; why, its status says
            await begun.done_writing()
        await (begun if kind == "stream_unary" else begun.read())

    async with echoing(tmp_path, **{kind: refuse}) as caller:
        for _ in range(50):
            with pytest.raises(Draining), translate_errors():
                await call(caller)


async def test_two_writes_at_once_by_the_client_fail_rather_than_hang(tmp_path):
    async def ignore(requests, context):
        await asyncio.Event().wait()
        yield

    async with echoing(tmp_path, stream_stream=ignore, grace=timedelta(0)) as caller:
        call = caller.stream_stream()
        await call.initial_metadata()
        with pytest.raises(RemoteError) as caught, translate_errors():
            await asyncio.gather(*[call.write(text("x" * 3_000_000)) for _ in range(8)])
        assert caught.value.code is grpc.StatusCode.INTERNAL


def test_addresses_are_read_and_written_back():
    for given, parsed in {
        "127.0.0.1:7410": TcpAddress("127.0.0.1", 7410),
        "[::1]:0": TcpAddress("::1", 0),
        "runtime.internal:443": TcpAddress("runtime.internal", 443),
    }.items():
        assert parse_address(given) == parsed
        assert str(parsed) == given
    for given in ("unix:/run/a.sock", "unix:///run/a.sock"):
        socket = parse_address(given)
        assert isinstance(socket, UnixAddress)
        assert str(socket) == "unix:/run/a.sock"


@pytest.mark.parametrize(
    "address",
    ["", "host", ":1", "host:", "host:x", "host:70000", "host:-1", "::1:80", "[::1]", "[host]:1",
     "http://host:1", "a b:1", "host:1/x", "unix-abstract:x:1", "dns:///host:1", "host:٣"],
)  # fmt: skip
def test_what_is_no_address_is_refused(address):
    with pytest.raises(BadAddress):
        parse_address(address)


def test_relative_and_long_socket_paths_are_refused():
    for path in ("run/a.sock", "/" + "x" * 107):
        with pytest.raises(UnusablePath):
            parse_address(f"unix:{path}")


@pytest.mark.parametrize(
    ("host", "loopback"),
    [("127.0.0.1", True), ("127.8.8.8", True), ("::1", True), ("localhost", True),
     ("0.0.0.0", False), ("10.0.0.1", False), ("localhost.example", False), ("::", False)],
)  # fmt: skip
def test_loopback_is_told_from_the_rest(host, loopback):
    assert TcpAddress(host, 1).loopback is loopback


@pytest.mark.parametrize("key", ["", "a b", "schlüssel", "a\nb", "a\x7f"])
async def test_key_that_no_header_can_carry_is_refused(key):
    with pytest.raises(BadChannel) as caught:
        open_channel("127.0.0.1:1", key=key)
    assert not key or key not in str(caught.value)


async def test_tls_on_a_socket_is_refused(tmp_path):
    with pytest.raises(BadChannel):
        open_channel(f"unix:{tmp_path}/s", tls=ClientTls())


def test_certificate_without_its_key_is_refused(tmp_path):
    with pytest.raises(ValueError, match="go together"):
        ClientTls(certificate=tmp_path / "cert.pem")
