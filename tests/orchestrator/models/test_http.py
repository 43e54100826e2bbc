"""What both protocols share: the wire and its faults, over real sockets."""

import asyncio
import gc
import socket
from contextlib import aclosing
from datetime import timedelta

import pytest

from orchestrator.models.clients import Endpoint, HttpClients, Limits
from orchestrator.models.errors import (
    ContextLengthExceeded,
    ModelAuthenticationFailed,
    ModelNotFound,
    ModelProtocolMismatch,
    ModelQuotaExhausted,
    ModelRateLimited,
    ModelRequestRefused,
    ModelServerFailed,
    ModelStreamBroken,
    ModelTimeout,
    ModelUnreachable,
)
from orchestrator.models.http import ModelServer
from orchestrator.models.model import Message, TextDelta
from orchestrator.models.retry import Retries, RetryPolicy
from orchestrator.models.server_model import ServerModel
from tests.orchestrator.models.conftest import KEY, PROTOCOLS
from tests.orchestrator.models.said import QUESTION, ask, begun_stream, good_stream
from tests.orchestrator.models.server import drop, status, stream
from workroom.errors import InvalidField

HELLO = [Message.of("assistant", "hello")]


@pytest.fixture(params=["responses", "chat"])
def protocol(request):
    return request.param


async def test_frames_cut_at_any_byte_on_the_wire_read_the_same(server, make_model, protocol):
    text = "né \u2028😀"
    transcript = good_stream(protocol, text)
    model = make_model(protocol)
    first = transcript.index(text.encode())
    for at in range(first - 40, first + 60):
        server.replies.append(stream(transcript[:at], transcript[at:]))
        assert (await ask(model)).items == [Message.of("assistant", text)], f"cut at {at}"


async def test_a_429_is_waited_for_as_long_as_it_asks(server, make_model, clock, protocol):
    slow = {"error": {"message": "slow down", "code": "rate_limit_exceeded"}}
    server.replies.append(status(429, slow, {"retry-after": "7"}))
    server.always = stream(good_stream(protocol))
    heard = await ask(make_model(protocol))
    assert heard.items == HELLO
    assert clock.slept == [pytest.approx(7, abs=0.1)]
    assert "slow down" in heard.restarts[0].reason


@pytest.mark.parametrize("code", [408, 409, 500, 502, 503, 529])
async def test_a_passing_fault_is_retried(server, make_model, clock, protocol, code):
    server.replies.append(status(code, "<html>bad gateway</html>"))
    server.always = stream(good_stream(protocol))
    assert (await ask(make_model(protocol))).items == HELLO
    assert clock.slept == [0.5]


async def test_a_connection_cut_in_mid_stream_restarts_and_doubles_nothing(
    server, make_model, protocol
):
    server.replies.append(drop(begun_stream(protocol, "hel")))
    server.replies.append(drop())
    server.always = stream(good_stream(protocol))
    heard = await ask(make_model(protocol))
    assert (heard.items, heard.text) == (HELLO, "hello")
    assert isinstance(heard.events[0], TextDelta)
    assert [restart.attempt for restart in heard.restarts] == [2, 3]


async def test_a_connection_that_is_always_cut_gives_up(server, make_model, protocol):
    server.always = drop(begun_stream(protocol))
    with pytest.raises(ModelStreamBroken, match="gave up after 3 attempts") as caught:
        await ask(make_model(protocol))
    assert caught.value.metadata["attempts"] == "3"
    assert len(server.received) == 3


async def test_a_stalled_stream_times_out(server, make_model, protocol):
    server.always = server.stall(begun_stream(protocol))
    async with HttpClients.open(Limits(idle=timedelta(milliseconds=50))) as clients:
        there = ModelServer(
            clients, Endpoint(server.base_url), Limits(idle=timedelta(milliseconds=50))
        )
        model = ServerModel(there, PROTOCOLS[protocol](), Retries(RetryPolicy(attempts=1)))
        with pytest.raises(ModelTimeout, match=r"sent nothing for 0\.05 s"):
            await ask(model)
    await server.disconnected.wait()


async def test_an_endless_answer_is_ended(server, make_model, protocol, clock):
    server.always = server.stall(b": still here\n\n")
    with pytest.raises(ModelTimeout, match="not complete after -1 s"):
        await ask(make_model(protocol, answer=timedelta(seconds=-1)))
    assert len(server.received) == 1


@pytest.mark.parametrize(
    ("code", "body", "error", "cure"),
    [
        (401, {"error": {"message": f"Incorrect API key provided: {KEY}"}},
         ModelAuthenticationFailed, "ORCHESTRATOR_MODEL_API_KEY"),
        (403, {"error": {"message": "no access"}}, ModelAuthenticationFailed, "API_KEY"),
        (404, {"error": {"message": "The model `m-1` does not exist", "code": "model_not_found"}},
         ModelNotFound, "ORCHESTRATOR_MODEL"),
        (404, {"error": 'model "m-1" not found, try pulling it first'}, ModelNotFound, "set"),
        (404, "404 page not found", ModelProtocolMismatch, "ends in /v1"),
        (405, "<html>not allowed</html>", ModelProtocolMismatch, "ends in /v1"),
        (307, "", ModelProtocolMismatch, "ORCHESTRATOR_MODEL_BASE_URL"),
        (400, {"error": {"message": "too long", "code": "context_length_exceeded"}},
         ContextLengthExceeded, "compact"),
        (400, {"object": "error", "message": "This model's maximum context length is 8 tokens"},
         ContextLengthExceeded, "compact"),
        (400, {"error": {"code": 400, "type": "exceed_context_size_error", "message": "x"}},
         ContextLengthExceeded, "compact"),
        (413, "too large", ContextLengthExceeded, "compact"),
        (400, {"error": {"message": "bad effort", "param": "reasoning.effort"}},
         ModelRequestRefused, "bad effort"),
        (422, {"detail": [{"loc": ["body", "tools"], "msg": "bad"}]}, ModelRequestRefused, "tools"),
        (429, {"error": {"message": "pay", "code": "insufficient_quota"}},
         ModelQuotaExhausted, "credit"),
        (402, {"error": {"message": "pay"}}, ModelQuotaExhausted, "credit"),
        (429, {"error": {"message": "later"}}, ModelRateLimited, "later"),
        (500, "", ModelServerFailed, "log"),
    ],
)  # fmt: skip
async def test_each_fault_has_its_error_and_names_the_cure(
    server, make_model, protocol, code, body, error, cure
):
    server.always = status(code, body)
    with pytest.raises(error) as caught:
        await ask(make_model(protocol, attempts=1))
    told = caught.value
    assert type(told) is error
    assert cure in told.message
    assert server.base_url in told.message and "'m-1'" in told.message
    assert KEY not in told.message and KEY not in str(told.metadata)
    assert told.metadata["status"] == str(code)
    assert len(server.received) == 1


async def test_a_final_fault_is_not_retried(server, make_model, protocol):
    server.always = status(401, {"error": {"message": "wrong key"}})
    with pytest.raises(ModelAuthenticationFailed):
        await ask(make_model(protocol))
    assert len(server.received) == 1


async def test_a_server_that_says_not_to_retry_is_not_asked_again(server, make_model, protocol):
    server.always = status(503, "", {"x-should-retry": "false"})
    with pytest.raises(ModelServerFailed):
        await ask(make_model(protocol))
    assert len(server.received) == 1


async def test_a_refused_field_is_named(server, make_model, protocol):
    body = {"error": {"message": "bad effort", "param": "reasoning.effort"}}
    server.always = status(400, body)
    with pytest.raises(ModelRequestRefused) as caught:
        await ask(make_model(protocol))
    assert caught.value.metadata["param"] == "reasoning.effort"


async def test_a_server_that_is_not_there_says_so(make_model, protocol):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        base_url = f"http://127.0.0.1:{closed.getsockname()[1]}/v1"
        with pytest.raises(ModelUnreachable, match="check that it runs") as caught:
            await ask(make_model(protocol, base_url=base_url))
    assert caught.value.metadata["attempts"] == "3"


@pytest.mark.parametrize("garbage", [b"data: {nope\n\n", b"data: [1]\n\n", b"{nope", b""])
async def test_what_is_no_json_is_retried_as_a_broken_stream(server, make_model, protocol, garbage):
    server.replies.append(stream(garbage))
    server.always = stream(good_stream(protocol))
    heard = await ask(make_model(protocol))
    assert heard.items == HELLO and len(heard.restarts) == 1


async def test_a_web_page_is_no_model_server(server, make_model, protocol):
    server.always = status(200, "<!doctype html><title>Welcome</title>")
    with pytest.raises(ModelProtocolMismatch, match="web page"):
        await ask(make_model(protocol))


async def test_comments_and_empty_events_are_passed_over(server, make_model, protocol):
    noise = b": waiting\n\nevent: ping\ndata:\n\nid: 1\n\n"
    server.always = stream(noise, good_stream(protocol), noise)
    assert (await ask(make_model(protocol))).items == HELLO


async def test_a_very_large_event_arrives_whole(server, make_model, protocol):
    text = "x" * (3 * 1024 * 1024)
    server.always = stream(good_stream(protocol, text))
    assert (await ask(make_model(protocol))).items == [Message.of("assistant", text)]


async def test_cancelling_closes_the_connection(server, make_model, protocol):
    server.always = server.stall(begun_stream(protocol))
    async with asyncio.TaskGroup() as tasks:
        asking = tasks.create_task(ask(make_model(protocol)))
        await server.stalled.wait()
        asking.cancel()
    await server.disconnected.wait()
    assert asking.cancelled()


async def test_cancelling_before_the_first_byte_closes_the_connection(server, make_model, protocol):
    arrived = asyncio.Event()

    async def never(request):
        arrived.set()
        try:
            await asyncio.Event().wait()
        finally:
            server.disconnected.set()

    server.always = never
    async with asyncio.TaskGroup() as tasks:
        asking = tasks.create_task(ask(make_model(protocol)))
        await arrived.wait()
        asking.cancel()
    await server.disconnected.wait()


async def test_closing_the_iterator_closes_the_connection(server, make_model, protocol):
    server.always = server.stall(begun_stream(protocol, "hel"))
    async with aclosing(make_model(protocol).stream(QUESTION)) as answer:
        assert await anext(answer) == TextDelta("hel")
    await server.disconnected.wait()
    gc.collect()


async def test_connections_are_used_again(server, make_model, protocol):
    peers = set()

    async def reply(request):
        peers.add(request.transport.get_extra_info("peername"))
        return await stream(good_stream(protocol))(request)

    server.always = reply
    model = make_model(protocol)
    for _ in range(5):
        await ask(model)
    assert len(peers) == 1


async def test_hundreds_of_streams_run_at_once(server, make_model, protocol):
    together = asyncio.Barrier(300)

    async def reply(request):
        await together.wait()
        return await stream(good_stream(protocol))(request)

    server.always = reply
    model = make_model(protocol)
    async with asyncio.TaskGroup() as tasks:
        asking = [tasks.create_task(ask(model)) for _ in range(300)]
    assert all(task.result().items == HELLO for task in asking)


async def test_who_finds_no_free_connection_is_told(server):
    server.always = server.stall(begun_stream("chat"))
    limits = Limits(connect=timedelta(milliseconds=50), connections=1)
    async with HttpClients.open(limits) as clients, asyncio.TaskGroup() as tasks:
        there = ModelServer(clients, Endpoint(server.base_url), limits)
        model = ServerModel(there, PROTOCOLS["chat"](), Retries(RetryPolicy(attempts=1)))
        first = tasks.create_task(ask(model))
        await server.stalled.wait()
        with pytest.raises(ModelUnreachable, match="all connections are in use"):
            await ask(model)
        first.cancel()


async def test_a_loopback_server_is_not_asked_through_a_proxy(server, monkeypatch, protocol):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    server.always = stream(good_stream(protocol))
    async with HttpClients.open(Limits()) as clients:
        there = ModelServer(clients, Endpoint(server.base_url), Limits())
        model = ServerModel(there, PROTOCOLS[protocol](), Retries(RetryPolicy(attempts=1)))
        assert (await ask(model)).items == HELLO


async def test_other_servers_are_asked_through_the_proxy(server, monkeypatch, protocol):
    asked = []

    async def reply(request):
        asked.append(str(request.url))
        return await stream(good_stream(protocol))(request)

    server.always = reply
    for name in ("HTTP_PROXY", "http_proxy"):
        monkeypatch.setenv(name, server.base_url.removesuffix("/v1"))
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    async with HttpClients.open(Limits()) as clients:
        there = ModelServer(clients, Endpoint("http://models.example/v1"), Limits())
        model = ServerModel(there, PROTOCOLS[protocol](), Retries(RetryPolicy(attempts=1)))
        assert (await ask(model)).items == HELLO
    assert asked[0].startswith("http://models.example/v1/")


async def test_credentials_in_the_url_are_sent_and_never_shown(server, make_model, protocol):
    base_url = server.base_url.replace("http://", "http://me:p%40ss@")
    server.always = status(401, {"error": {"message": "no p@ss"}})
    with pytest.raises(ModelAuthenticationFailed) as caught:
        await ask(make_model(protocol, base_url=base_url, api_key=""))
    assert server.received[0].headers["authorization"] == "Basic bWU6cEBzcw=="
    assert server.base_url in caught.value.message
    assert "p@ss" not in caught.value.message and "p%40ss" not in caught.value.message


@pytest.mark.parametrize(
    ("base_url", "api_key", "problem"),
    [
        ("ftp://host/v1", "", "http"),
        ("host:8000", "", "http"),
        ("http://", "", "host"),
        ("http://host/v1?key=1", "", "query"),
        ("http://me:pw@host/v1", "key", "one of them"),
        ("http://host/v1", "two\nlines", "printable"),
        ("http://host/v1", "clé", "printable"),
    ],
)
def test_an_endpoint_that_cannot_work_is_refused(base_url, api_key, problem):
    with pytest.raises(InvalidField, match=problem):
        Endpoint(base_url, api_key)


def test_an_endpoint_does_not_show_its_key():
    endpoint = Endpoint("http://host/v1/", KEY)
    assert KEY not in repr(endpoint)
    assert endpoint.address == "http://host/v1"


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://127.0.0.1:1/v1", True),
        ("http://127.8.9.1/v1", True),
        ("http://[::1]:1/v1", True),
        ("http://localhost/v1", True),
        ("http://model.localhost/v1", True),
        ("http://10.0.0.1/v1", False),
        ("http://localhost.example/v1", False),
    ],
)
def test_loopback_is_known_by_its_address(url, expected):
    assert Endpoint(url).is_loopback is expected
