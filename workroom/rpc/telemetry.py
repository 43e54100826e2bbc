"""Owns the request id and the W3C trace context of the running call; exports nothing anywhere."""

import random
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Self

TRACEPARENT = "traceparent"
TRACESTATE = "tracestate"
REQUEST_ID = "x-request-id"

_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_TRACESTATE_LIMIT = 512


@dataclass(frozen=True)
class TraceContext:
    """One span's place in a trace, as the W3C `traceparent` header writes it."""

    trace_id: str
    span_id: str
    sampled: bool = True
    state: str = ""

    @classmethod
    def new(cls) -> Self:
        """The root of a new trace."""
        return cls(trace_id=_hex(128), span_id=_hex(64))

    @classmethod
    def parse(cls, traceparent: str, tracestate: str = "") -> Self | None:
        """The sender's span; None when the header is not one, so that a new trace begins."""
        match = _TRACEPARENT.fullmatch(traceparent)
        if match is None:
            return None
        version, trace_id, span_id, flags, rest = match.groups()
        if version == "ff" or (version == "00" and rest is not None):
            return None
        if not int(trace_id, 16) or not int(span_id, 16):
            return None
        state = tracestate if len(tracestate) <= _TRACESTATE_LIMIT else ""
        return cls(
            trace_id=trace_id, span_id=span_id, sampled=bool(int(flags, 16) & 1), state=state
        )

    @property
    def traceparent(self) -> str:
        """The header to send, in which this span is the receiver's parent."""
        return f"00-{self.trace_id}-{self.span_id}-{int(self.sampled):02x}"

    def child(self) -> Self:
        """A new span below this one."""
        return type(self)(self.trace_id, _hex(64), self.sampled, self.state)


_trace: ContextVar[TraceContext | None] = ContextVar("workroom_trace", default=None)
_request_id: ContextVar[str | None] = ContextVar("workroom_request_id", default=None)


def current_trace() -> TraceContext | None:
    """The span of the call being served, if one is."""
    return _trace.get()


def current_request_id() -> str | None:
    """The id of the call being served, if one is."""
    return _request_id.get()


def new_request_id() -> str:
    """A fresh request id."""
    return f"req_{_hex(96)}"


def enter_call(metadata: Iterable[tuple[str, str | bytes]]) -> tuple[str, TraceContext]:
    """Binds the request id and a span below the caller's, for the rest of the running task.

    An absent or malformed value is replaced by a new one.
    """
    sent = {key: value for key, value in metadata if isinstance(value, str)}
    asked = sent.get(REQUEST_ID, "")
    request_id = asked if _REQUEST_ID.fullmatch(asked) else new_request_id()
    parent = TraceContext.parse(sent.get(TRACEPARENT, ""), sent.get(TRACESTATE, ""))
    trace = parent.child() if parent else TraceContext.new()
    _request_id.set(request_id)
    _trace.set(trace)
    return request_id, trace


@contextmanager
def tracing(trace: TraceContext, request_id: str | None = None) -> Iterator[TraceContext]:
    """Binds `trace` (and `request_id`) for the body: for work that no incoming call began."""
    trace_token = _trace.set(trace)
    id_token = _request_id.set(request_id or new_request_id())
    try:
        yield trace
    finally:
        _trace.reset(trace_token)
        _request_id.reset(id_token)


def outgoing_metadata() -> tuple[tuple[str, str], ...]:
    """What an outgoing call carries: the bound request id and trace, or new ones."""
    trace = _trace.get() or TraceContext.new()
    pairs = [(REQUEST_ID, _request_id.get() or new_request_id()), (TRACEPARENT, trace.traceparent)]
    if trace.state:
        pairs.append((TRACESTATE, trace.state))
    return tuple(pairs)


def _hex(bits: int) -> str:
    """Random digits, not all zero. They name calls and guard nothing, so they may be cheap."""
    return f"{random.getrandbits(bits) or 1:0{bits // 4}x}"
