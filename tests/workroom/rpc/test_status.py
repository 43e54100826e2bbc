import asyncio
from datetime import timedelta

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2

from tests.workroom.rpc.echo import echoing, text
from workroom.errors import (
    Draining,
    InvalidField,
    NotSupported,
    RemoteError,
    WorkroomError,
)
from workroom.rpc.status import from_rpc_error, from_status, to_status, translate_errors


class HostFullForTest(WorkroomError):
    code = grpc.StatusCode.RESOURCE_EXHAUSTED
    reason = "HOST_FULL_FOR_TEST"


def test_known_class_comes_back_with_its_metadata_and_delay():
    sent = HostFullForTest("host holds 3", retry_after=timedelta(seconds=2.5), capacity="3")
    got = from_status(to_status(sent))
    assert type(got) is HostFullForTest
    assert (got.message, got.metadata, got.retry_after) == (
        "host holds 3",
        {"capacity": "3"},
        timedelta(seconds=2.5),
    )
    assert str(got) == "host holds 3"


def test_invalid_field_carries_a_bad_request_and_comes_back_whole():
    status = to_status(NotSupported("tools.0.type", "must be shell", allowed="shell"))
    bad = error_details_pb2.BadRequest()
    assert any(detail.Unpack(bad) for detail in status.details)
    assert bad.field_violations[0].field == "tools.0.type"
    assert bad.field_violations[0].description == "must be shell"
    got = from_status(status)
    assert type(got) is NotSupported
    assert (got.field, got.problem) == ("tools.0.type", "must be shell")
    assert got.metadata == {"field": "tools.0.type", "allowed": "shell"}


def test_metadata_may_have_any_name():
    sent = HostFullForTest("no").rebuild("no", {"message": "m", "retry_after": "r", "self": "s"})
    assert from_status(to_status(sent)).metadata == sent.metadata


def test_every_loaded_class_survives_the_way_there_and_back():
    def below(kind: type[WorkroomError]):
        for child in kind.__subclasses__():
            yield child
            yield from below(child)

    for kind in set(below(WorkroomError)) - {RemoteError}:
        got = from_status(to_status(kind.rebuild("message", {"key": "value"})))
        assert (got.code, got.reason) == (kind.code, kind.reason), kind
        assert got.metadata == {"key": "value"}


def test_unknown_reason_becomes_a_remote_error_and_passes_on_as_it_was():
    status = to_status(
        RemoteError("odd", code=grpc.StatusCode.ABORTED, reason="NEVER_HEARD", metadata={"a": "b"})
    )
    got = from_status(status)
    assert isinstance(got, RemoteError)
    assert (got.code, got.reason, got.metadata) == (
        grpc.StatusCode.ABORTED,
        "NEVER_HEARD",
        {"a": "b"},
    )
    assert to_status(got) == status


def test_foreign_domain_is_never_taken_for_ours():
    status = status_pb2.Status(code=14, message="x")
    status.details.add().Pack(error_details_pb2.ErrorInfo(domain="other", reason="DRAINING"))
    assert isinstance(from_status(status), RemoteError)


@pytest.mark.parametrize("letter", ["x", "é", "木", "\ud800"])
async def test_large_error_still_reaches_the_client(tmp_path, letter):
    async def fail(request, context):
        pairs = {f"key_{n}": letter * 5000 for n in range(40)}
        raise InvalidField("name", letter * 100_000, **pairs)

    async with echoing(tmp_path, unary_unary=fail) as caller:
        with pytest.raises(InvalidField) as caught, translate_errors():
            await caller.unary_unary(text("x"), timeout=5)
    assert caught.value.field == "name"
    assert caught.value.message.endswith("…")


async def test_status_without_details_keeps_its_code():
    error = grpc.aio.AioRpcError(
        grpc.StatusCode.UNAVAILABLE, grpc.aio.Metadata(), grpc.aio.Metadata(), details="no route"
    )
    got = from_rpc_error(error)
    assert isinstance(got, RemoteError)
    assert (got.code, got.reason, got.message) == (error.code(), "UNAVAILABLE", "no route")


async def test_garbled_details_are_no_reason_to_fail():
    metadata = grpc.aio.Metadata(("grpc-status-details-bin", b"\xff\xff\xff"))
    error = grpc.aio.AioRpcError(grpc.StatusCode.NOT_FOUND, grpc.aio.Metadata(), metadata, "gone")
    assert from_rpc_error(error).code == grpc.StatusCode.NOT_FOUND


async def test_stream_that_breaks_is_translated_too(tmp_path):
    async def stream(request, context):
        yield text("one")
        raise Draining("stop")

    async with echoing(tmp_path, unary_stream=stream) as caller:
        seen = []
        with pytest.raises(Draining), translate_errors():
            call = caller.unary_stream(text("x"), timeout=5)
            while True:
                seen.append((await call.read()).value)
        assert seen == ["one"]


async def test_cancellation_of_the_caller_is_not_translated(tmp_path):
    async def hang(request, context):
        await asyncio.Event().wait()

    async with echoing(tmp_path, unary_unary=hang) as caller:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                with translate_errors():
                    await caller.unary_unary(text("x"))
