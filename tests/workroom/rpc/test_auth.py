import asyncio

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from tests.workroom.rpc.echo import SERVICE, Caller, Echo, text
from workroom.errors import Internal, Unauthenticated
from workroom.rpc.auth import Principal, current_principal, token_verifier
from workroom.rpc.channel import open_channel, translate_errors
from workroom.rpc.server import Listener, serving

KEYS = {"key-of-ada": Principal("ada"), "key-of-bob": Principal("bob", "project-b")}


async def lookup(key):
    return KEYS.get(key)


async def who(request, context):
    principal = current_principal()
    return text(f"{principal.name} {principal.project_id}")


async def whos(requests, context):
    async for _ in requests:
        yield await who(None, context)


ECHO = Echo(unary_unary=who, stream_stream=whos)


@pytest.fixture
async def both(tmp_path):
    """One service on TCP, where a key is needed, and on its owner's socket, where none is."""
    listeners = [
        Listener("127.0.0.1:0", verifier=lookup),
        Listener(f"unix:{tmp_path}/run/s.sock"),
    ]
    async with serving([ECHO.register], listeners, services=[SERVICE]) as server:
        yield server.addresses


async def call(address, **kwargs):
    metadata = kwargs.pop("metadata", None)
    async with open_channel(address, **kwargs) as channel:
        with translate_errors():
            answer = await Caller(channel).unary_unary(text(""), metadata=metadata, timeout=5)
    return answer.value


async def test_key_tells_the_caller(both):
    tcp, unix = both
    assert await call(tcp, key="key-of-ada") == "ada default"
    assert await call(tcp, key="key-of-bob") == "bob project-b"
    assert await call(unix) == "owner default"


async def test_socket_caller_is_the_owner_whatever_it_sends(both):
    assert await call(both[1], key="key-of-ada") == "owner default"


@pytest.mark.parametrize(
    "values",
    [
        [],
        ["key-of-ada"],
        ["Basic key-of-ada"],
        ["Bearer"],
        ["Bearer "],
        ["Bearer key-of-eve"],
        ["Bearer " + "x" * 5000],
        ["Bearer key-of-ada", "Bearer key-of-bob"],
    ],
)
async def test_anything_but_one_known_key_is_refused(both, values):
    with pytest.raises(Unauthenticated):
        await call(both[0], metadata=[("authorization", value) for value in values])


@pytest.mark.parametrize(
    "metadata",
    [
        (("x-forwarded-for", "unix:"),),
        (("x-peer", "unix:/run/s.sock"), ("forwarded", "for=unix:")),
        (("grpc-peer", "unix:"), ("x-envoy-peer-metadata", "unix:")),
    ],
)
async def test_tcp_caller_cannot_pass_for_a_socket(both, metadata):
    with pytest.raises(Unauthenticated):
        await call(both[0], metadata=metadata)
    options = [("grpc.default_authority", "unix:/run/s.sock"), ("grpc.primary_user_agent", "unix:")]
    async with grpc.aio.insecure_channel(both[0], options=options) as channel:
        with pytest.raises(Unauthenticated), translate_errors():
            await Caller(channel).unary_unary(text(""), metadata=metadata, timeout=5)


async def test_stream_is_refused_before_a_message_is_sent(both):
    async with open_channel(both[0]) as channel:
        stream = Caller(channel).stream_stream(timeout=5)
        with pytest.raises(Unauthenticated), translate_errors():
            await stream.read()


async def test_unknown_method_does_not_tell_strangers_that_it_is_unknown(both):
    async with open_channel(both[0]) as channel:
        with pytest.raises(Unauthenticated), translate_errors():
            await Caller(channel).channel.unary_unary(f"/{SERVICE}/Nope")(b"", timeout=5)
        with pytest.raises(Unauthenticated), translate_errors():
            await Caller(channel).channel.unary_unary("/grpc.health.v1.HealthX/A")(b"", timeout=5)


async def test_health_and_reflection_need_no_key(both):
    async with open_channel(both[0]) as channel:
        answer = await health_pb2_grpc.HealthStub(channel).Check(
            health_pb2.HealthCheckRequest(service=SERVICE), timeout=5
        )
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
        stream = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(timeout=5)
        await stream.write(reflection_pb2.ServerReflectionRequest(list_services=""))
        listed = (await stream.read()).list_services_response.service
        assert SERVICE in {service.name for service in listed}
        stream.cancel()


async def test_failing_verifier_refuses_without_telling_why(logged):
    async def broken(key):
        raise OSError("database is gone")

    listener = Listener("127.0.0.1:0", verifier=broken)
    async with serving([ECHO.register], listener, services=[]) as server:
        with pytest.raises(Internal, match="^internal error$"):
            await call(server.address, key="x")
    assert "database is gone" in logged.of("call failed")[0]["exception"]


async def test_cancelled_call_ends_its_verification(logged):
    begun, ended = asyncio.Event(), asyncio.Event()

    async def slow(key):
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    listener = Listener("127.0.0.1:0", verifier=slow)
    async with serving([ECHO.register], listener, services=[]) as server:
        async with open_channel(server.address, key="x") as channel:
            pending = Caller(channel).unary_unary(text(""))
            await asyncio.wait_for(begun.wait(), 5)
            pending.cancel()
            await asyncio.wait_for(ended.wait(), 5)


async def test_token_verifier_takes_only_its_token():
    verify = token_verifier("tökén", Principal("service"))
    assert await verify("tökén") == Principal("service")
    for wrong in ("", "t", "tökén ", "token", "x" * 10_000):
        assert await verify(wrong) is None


def test_empty_token_is_refused():
    with pytest.raises(ValueError, match="everybody"):
        token_verifier("")


def test_no_principal_outside_of_a_call():
    with pytest.raises(Unauthenticated):
        current_principal()
