from typing import Any

import pytest

from workroom.rpc.telemetry import (
    TraceContext,
    current_request_id,
    current_trace,
    outgoing_metadata,
    tracing,
)

parse: Any = TraceContext.parse
TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


def test_header_is_read_and_written_back():
    trace = parse(f"00-{TRACE}-{SPAN}-01", "vendor=1")
    assert (trace.trace_id, trace.span_id, trace.sampled) == (TRACE, SPAN, True)
    assert trace.traceparent == f"00-{TRACE}-{SPAN}-01"
    assert trace.state == "vendor=1"
    assert parse(f"00-{TRACE}-{SPAN}-02").traceparent.endswith("-00")


def test_later_version_may_carry_more():
    assert parse(f"01-{TRACE}-{SPAN}-01-more").trace_id == TRACE


@pytest.mark.parametrize(
    "header",
    [
        "",
        f"00-{TRACE}-{SPAN}",
        f"00-{TRACE}-{SPAN}-01-more",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01\n",
        f" 00-{TRACE}-{SPAN}-01",
    ],
)
def test_malformed_header_is_as_good_as_none(header):
    assert parse(header) is None


def test_child_stays_in_the_trace():
    parent = parse(f"00-{TRACE}-{SPAN}-00", "a=b")
    child = parent.child()
    assert (child.trace_id, child.sampled, child.state) == (TRACE, False, "a=b")
    assert child.span_id != SPAN


def test_work_of_its_own_can_be_traced():
    assert current_trace() is None
    with tracing(TraceContext.new()) as trace:
        assert current_trace() is trace
        sent = dict(outgoing_metadata())
        assert sent == {"x-request-id": current_request_id(), "traceparent": trace.traceparent}
    assert current_trace() is None
    assert current_request_id() is None


def test_overlong_state_is_dropped():
    assert parse(f"00-{TRACE}-{SPAN}-01", "x" * 513).state == ""
