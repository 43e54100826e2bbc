import asyncio
from functools import partial

import grpc
import pytest
import structlog

from tests.workroom.rpc.echo import SERVICE, echoing, eventually, text
from workroom.errors import InvalidField, RemoteError, WorkroomError
from workroom.rpc.status import translate_errors
from workroom.rpc.telemetry import current_request_id, current_trace

PARENT = f"00-{'ab' * 16}-{'cd' * 8}-01"


def traceparent():
    trace = current_trace()
    assert trace is not None
    return trace.traceparent


class ThingMissing(WorkroomError):
    code = grpc.StatusCode.NOT_FOUND
    reason = "THING_MISSING"


async def call_unary_unary(caller, **kwargs):
    return [(await caller.unary_unary(text("a"), **kwargs)).value]


async def call_stream_unary(caller, **kwargs):
    return [(await caller.stream_unary(iter([text("a"), text("b")]), **kwargs)).value]


async def call_unary_stream(caller, **kwargs):
    return [message.value async for message in caller.unary_stream(text("a"), **kwargs)]


async def call_stream_stream(caller, **kwargs):
    requests = iter([text("a"), text("b")])
    return [message.value async for message in caller.stream_stream(requests, **kwargs)]


CALLS = {
    "unary_unary": call_unary_unary,
    "stream_unary": call_stream_unary,
    "unary_stream": call_unary_stream,
    "stream_stream": call_stream_stream,
}


async def joined(requests):
    if hasattr(requests, "__aiter__"):
        return "".join([message.value async for message in requests])
    return requests.value


async def returning(requests, context):
    return text(await joined(requests))


async def yielding(requests, context):
    for letter in await joined(requests):
        yield text(letter)


async def writing(requests, context):
    for letter in await joined(requests):
        await context.write(text(letter))


@pytest.mark.parametrize(
    ("kind", "behaviour", "answer"),
    [
        ("unary_unary", returning, ["a"]),
        ("stream_unary", returning, ["ab"]),
        ("unary_stream", yielding, ["a"]),
        ("unary_stream", writing, ["a"]),
        ("stream_stream", yielding, ["a", "b"]),
        ("stream_stream", writing, ["a", "b"]),
    ],
)
async def test_every_kind_and_style_of_method_works(tmp_path, logged, kind, behaviour, answer):
    async with echoing(tmp_path, **{kind: behaviour}) as caller:
        assert await CALLS[kind](caller, timeout=5) == answer
    (line,) = logged.of("call finished")
    assert line["method"].startswith(f"/{SERVICE}/")
    assert line["code"] == "OK"
    assert line["duration_ms"] >= 0
    assert line["principal"] == "owner"
    assert line["request_id"].startswith("req_")


def failing(style, error):
    async def fail(requests, context):
        raise error()

    async def fail_yielding(requests, context):
        yield text("x")
        raise error()

    async def fail_writing(requests, context):
        await context.write(text("x"))
        raise error()

    return {"return": fail, "yield": fail_yielding, "write": fail_writing}[style]


STYLES = [
    ("unary_unary", "return"),
    ("stream_unary", "return"),
    ("unary_stream", "yield"),
    ("unary_stream", "write"),
    ("stream_stream", "yield"),
    ("stream_stream", "write"),
]


@pytest.mark.parametrize(("kind", "style"), STYLES)
async def test_domain_error_reaches_the_client_as_itself(tmp_path, logged, kind, style):
    behaviour = failing(style, lambda: ThingMissing("no thing t1", thing="t1"))
    async with echoing(tmp_path, **{kind: behaviour}) as caller:
        with pytest.raises(ThingMissing) as caught, translate_errors():
            await CALLS[kind](caller, timeout=5)
    assert caught.value.metadata == {"thing": "t1"}
    (line,) = logged.of("call finished")
    assert (line["code"], line["level"]) == ("NOT_FOUND", "info")


@pytest.mark.parametrize(("kind", "style"), STYLES)
async def test_unknown_exception_is_internal_and_only_logged(tmp_path, logged, kind, style):
    behaviour = failing(style, lambda: ValueError("the hidden cause"))
    async with echoing(tmp_path, **{kind: behaviour}) as caller:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await CALLS[kind](caller, timeout=5)
    assert caught.value.code() is grpc.StatusCode.INTERNAL
    assert caught.value.details() == "internal error"
    assert "hidden" not in str(caught.value.trailing_metadata())
    (line,) = logged.of("call failed")
    assert "the hidden cause" in line["exception"]
    assert logged.of("call finished")[0]["level"] == "error"


@pytest.mark.parametrize(("kind", "style"), STYLES)
async def test_own_cancellation_never_leaves_the_client_waiting(tmp_path, logged, kind, style):
    behaviour = failing(style, asyncio.CancelledError)
    async with echoing(tmp_path, **{kind: behaviour}) as caller:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await CALLS[kind](caller, timeout=5)
    assert caught.value.code() is grpc.StatusCode.INTERNAL


async def test_awaiting_a_cancelled_task_is_internal(tmp_path, logged):
    async def behaviour(request, context):
        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(asyncio.sleep(60))
            task.cancel()
            await task

    async with echoing(tmp_path, unary_unary=behaviour) as caller:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await caller.unary_unary(text("x"), timeout=5)
    assert caught.value.code() is grpc.StatusCode.INTERNAL


async def test_error_out_of_a_task_group_keeps_its_class(tmp_path, logged):
    async def fail():
        raise ThingMissing("no thing", thing="t")

    async def behaviour(request, context):
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(fail())
            await asyncio.sleep(60)

    async with echoing(tmp_path, unary_unary=behaviour) as caller:
        with pytest.raises(ThingMissing), translate_errors():
            await caller.unary_unary(text("x"), timeout=5)


async def test_group_with_an_unknown_exception_is_internal(tmp_path, logged):
    async def behaviour(request, context):
        raise ExceptionGroup("both", [ThingMissing("no"), KeyError("x")])

    async with echoing(tmp_path, unary_unary=behaviour) as caller:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await caller.unary_unary(text("x"), timeout=5)
    assert caught.value.code() is grpc.StatusCode.INTERNAL


@pytest.mark.parametrize(("kind", "style"), STYLES)
async def test_unparsable_request_is_the_clients_fault(tmp_path, logged, kind, style):
    behaviour = {"return": returning, "yield": yielding, "write": writing}[style]
    async with echoing(tmp_path, **{kind: behaviour}) as caller:
        method = "".join(part.title() for part in kind.split("_"))
        call = getattr(caller.channel, kind)(f"/{SERVICE}/{method}")
        request = iter([b"\xff\xff"]) if kind.startswith("stream") else b"\xff\xff"
        with pytest.raises(InvalidField), translate_errors():
            if kind.endswith("unary"):
                await call(request, timeout=5)
            else:
                async for _ in call(request, timeout=5):
                    pass


@pytest.mark.parametrize("kind", ["unary_unary", "unary_stream"])
async def test_answer_of_the_wrong_type_is_internal(tmp_path, logged, kind):
    async def unary(request, context):
        return "not a message"

    async def stream(request, context):
        yield "not a message"

    behaviour = unary if kind == "unary_unary" else stream
    async with echoing(tmp_path, **{kind: behaviour}) as caller:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await CALLS[kind](caller, timeout=5)
    assert (caught.value.code(), caught.value.details()) == (
        grpc.StatusCode.INTERNAL,
        "internal error",
    )


async def two_writes_at_once(request, context):
    async with asyncio.TaskGroup() as tasks:
        for _ in range(4):
            tasks.create_task(context.write(text("x" * 3_000_000)))


async def write_cut_short(request, context):
    while True:
        async with asyncio.timeout(0.1):
            await context.write(text("x" * 3_000_000))


@pytest.mark.parametrize("behaviour", [two_writes_at_once, write_cut_short])
async def test_failed_write_ends_the_call_rather_than_hang_it(tmp_path, logged, behaviour):
    async with echoing(tmp_path, unary_stream=behaviour) as caller:
        call = caller.unary_stream(text("x"), timeout=10)
        await eventually(partial(logged.of, "call failed"))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            async for _ in call:
                pass
    assert caught.value.code() is grpc.StatusCode.INTERNAL


async def test_stream_is_answered_before_its_first_message(tmp_path, logged):
    watched = Watched()
    async with echoing(tmp_path, stream_stream=watched.reading) as caller:
        call = caller.stream_stream(timeout=5)
        await call.initial_metadata()
        call.cancel()


async def test_unknown_method_is_unimplemented_and_logged(tmp_path, logged):
    async with echoing(tmp_path, unary_unary=returning) as caller:
        call = caller.channel.unary_unary(f"/{SERVICE}/Nope")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(b"", timeout=5)
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert logged.of("call finished")[0]["code"] == "UNIMPLEMENTED"


async def test_failing_interceptor_is_internal(tmp_path, logged):
    class Broken(grpc.aio.ServerInterceptor):
        async def intercept_service(self, continuation, details):
            raise RuntimeError("hidden")

    async with echoing(tmp_path, unary_unary=returning, interceptors=[Broken()]) as caller:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await caller.unary_unary(text("x"), timeout=5)
    assert caught.value.details() == "internal error"


async def test_request_id_is_kept_or_made_and_returned(tmp_path, logged):
    async def behaviour(request, context):
        return text(current_request_id())

    async with echoing(tmp_path, unary_unary=behaviour) as caller:
        for sent, kept in (("given-1", True), ("bad id\n!", False), (None, False)):
            plain = caller.channel._channel.unary_unary(f"/{SERVICE}/UnaryUnary")
            metadata = (("x-request-id", sent.replace("\n", "")),) if sent else ()
            call = plain(b"", metadata=metadata, timeout=5)
            seen = (await call)[2:].decode()
            assert dict(await call.trailing_metadata())["x-request-id"] == seen
            assert (seen == sent) if kept else seen.startswith("req_")


async def test_error_returns_the_request_id_too(tmp_path, logged):
    behaviour = failing("return", lambda: ThingMissing("no"))
    async with echoing(tmp_path, unary_unary=behaviour) as caller:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await caller.unary_unary(text("x"), metadata=(("x-request-id", "r-1"),), timeout=5)
    assert caught.value.trailing_metadata()["x-request-id"] == "r-1"


async def test_servicers_own_trailers_stay(tmp_path, logged):
    async def behaviour(request, context):
        context.set_trailing_metadata((("x-own", "1"),))
        return request

    async with echoing(tmp_path, unary_unary=behaviour) as caller:
        call = caller.unary_unary(text("x"), timeout=5)
        await call
        assert {"x-own", "x-request-id"} <= set((await call.trailing_metadata()).keys())


async def test_abort_by_a_servicer_passes_as_it_is(tmp_path, logged):
    async def behaviour(request, context):
        await context.abort(grpc.StatusCode.ABORTED, "as it is")

    async with echoing(tmp_path, unary_unary=behaviour) as caller:
        with pytest.raises(RemoteError) as caught, translate_errors():
            await caller.unary_unary(text("x"), timeout=5)
    assert (caught.value.code, caught.value.message) == (grpc.StatusCode.ABORTED, "as it is")
    assert logged.of("call finished")[0]["code"] == "ABORTED"


async def test_trace_goes_through_two_servers(tmp_path, logged):
    async def inner(request, context):
        return text(traceparent())

    async with echoing(tmp_path / "inner", unary_unary=inner) as below:

        async def outer(request, context):
            answer = await below.unary_unary(text(""), timeout=5)
            return text(f"{traceparent()} {answer.value}")

        async with echoing(tmp_path / "outer", unary_unary=outer) as caller:
            answer = await caller.unary_unary(
                text(""), metadata=(("traceparent", PARENT),), timeout=5
            )
    spans = [part.split("-") for part in (PARENT, *answer.value.split())]
    assert {span[1] for span in spans} == {"ab" * 16}
    assert len({span[2] for span in spans}) == 3
    lines = logged.of("call finished")
    assert {line["trace_id"] for line in lines} == {"ab" * 16}
    assert len({line["request_id"] for line in lines}) == 1


async def test_calls_do_not_share_their_context(tmp_path, logged):
    gate = asyncio.Event()

    async def behaviour(request, context):
        structlog.contextvars.bind_contextvars(own=request.value)
        before = current_request_id()
        await gate.wait()
        bound = structlog.contextvars.get_contextvars()
        assert (bound["own"], bound["request_id"]) == (request.value, before)
        return text(before)

    async with echoing(tmp_path, unary_unary=behaviour) as caller:
        calls = [caller.unary_unary(text(str(n)), timeout=5) for n in range(20)]
        gate.set()
        assert len({(await call).value for call in calls}) == 20


async def test_payload_and_metadata_are_never_logged(tmp_path, logged):
    behaviour = failing("return", lambda: ThingMissing("no"))
    async with echoing(tmp_path, unary_unary=behaviour, channel={"key": "key-hidden"}) as caller:
        with pytest.raises(grpc.aio.AioRpcError):
            await caller.unary_unary(
                text("payload-hidden"), metadata=(("x-other", "meta-hidden"),), timeout=5
            )
    assert logged.of("call finished")
    assert "hidden" not in logged.getvalue()


class Watched:
    """A behaviour that hangs, and says when it began and when its cleanup was done."""

    def __init__(self):
        self.begun = asyncio.Event()
        self.cleaned = asyncio.Event()

    async def hang(self):
        self.begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            self.cleaned.set()

    async def returning(self, request, context):
        await self.hang()

    async def yielding(self, request, context):
        yield text("first")
        await self.hang()

    async def yielding_always(self, request, context):
        self.begun.set()
        try:
            while True:
                yield text("x" * 100_000)
        finally:
            await asyncio.sleep(0)
            self.cleaned.set()

    async def writing(self, request, context):
        await context.write(text("first"))
        await self.hang()

    async def reading(self, requests, context):
        self.begun.set()
        try:
            async for _ in requests:
                pass
            await self.hang()
        finally:
            self.cleaned.set()


@pytest.mark.parametrize(
    ("kind", "style"),
    [
        ("unary_unary", "returning"),
        ("unary_stream", "yielding"),
        ("unary_stream", "yielding_always"),
        ("unary_stream", "writing"),
        ("stream_stream", "reading"),
    ],
)
async def test_cancelled_call_is_cleaned_up(tmp_path, logged, kind, style):
    watched = Watched()
    tasks_before = len(asyncio.all_tasks())
    async with echoing(tmp_path, **{kind: getattr(watched, style)}) as caller:
        call = getattr(caller, kind)(text("x")) if kind[0] == "u" else caller.stream_stream()
        async with asyncio.timeout(5):
            await watched.begun.wait()
            call.cancel()
            await watched.cleaned.wait()
        lines = await eventually(partial(logged.of, "call finished"))
        assert [line["code"] for line in lines] == ["CANCELLED"]
        assert not logged.of("call failed")
    await eventually(lambda: len(asyncio.all_tasks()) <= tasks_before)


async def test_handler_runs_under_the_clients_deadline(tmp_path, logged):
    watched = Watched()
    async with echoing(tmp_path, unary_unary=watched.returning) as caller:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await caller.unary_unary(text("x"), timeout=0.2)
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        async with asyncio.timeout(5):
            await watched.cleaned.wait()
        lines = await eventually(partial(logged.of, "call finished"))
        assert [line["code"] for line in lines] == ["DEADLINE_EXCEEDED"]


async def test_error_raised_while_cancelled_goes_nowhere(tmp_path, logged):
    begun, ended = asyncio.Event(), asyncio.Event()

    async def behaviour(request, context):
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
            raise ThingMissing("in cleanup")

    async with echoing(tmp_path, unary_unary=behaviour) as caller:
        call = caller.unary_unary(text("x"))
        async with asyncio.timeout(5):
            await begun.wait()
            call.cancel()
            await ended.wait()
        await eventually(partial(logged.of, "call finished"))
    assert "Unexpected" not in logged.getvalue()


async def test_client_killed_in_mid_stream_leaves_nothing(tmp_path, logged):
    watched = Watched()
    tasks_before = len(asyncio.all_tasks())
    async with echoing(tmp_path, unary_stream=watched.yielding_always) as caller:
        calls = [caller.unary_stream(text("x")) for _ in range(5)]
        for call in calls:
            await call.read()
        await caller.channel.close()
        lines = await eventually(
            lambda: logged.of("call finished")[4:] and logged.of("call finished")
        )
        assert {line["code"] for line in lines} == {"CANCELLED"}
    await eventually(lambda: len(asyncio.all_tasks()) <= tasks_before)
    assert not logged.of("call failed")
