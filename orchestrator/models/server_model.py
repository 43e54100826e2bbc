"""Owns one model call over HTTP, whichever protocol: ask, assemble, adapt, try again."""

import re
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing
from typing import Protocol
from uuid import uuid4

from orchestrator.models.errors import ModelRequestRefused
from orchestrator.models.faults import Faults
from orchestrator.models.http import ModelServer, Settling
from orchestrator.models.model import FunctionCall, ModelEvent, ModelRequest
from orchestrator.models.retry import Retries
from orchestrator.models.wire import Frame

Body = dict[str, object]


class Answer(Settling, Protocol):
    """Puts one answer together."""

    def feed(self, frame: Frame) -> Iterator[ModelEvent]:
        """Take a frame; yields the deltas in it. Errors: `ModelError`."""
        ...

    def finish(self) -> Iterator[ModelEvent]:
        """The body has ended: yields the items and the completion. Errors: `ModelError`."""
        ...


class WireProtocol(Protocol):
    """One wire protocol: how a request is written and an answer read."""

    path: str

    def body(self, request: ModelRequest) -> Body: ...

    def answer(self, request: ModelRequest, faults: Faults) -> Answer: ...

    def adapted(self, body: Body, refusal: ModelRequestRefused) -> Body | None:
        """The body without what the server refused; None if that cannot be left out."""
        ...


class ServerModel:
    """A model behind a server that speaks one of the protocols."""

    def __init__(self, server: ModelServer, protocol: WireProtocol, retries: Retries) -> None:
        self._server = server
        self._protocol = protocol
        self._retries = retries

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        async with aclosing(self._retries.run(lambda: self._attempt(request))) as events:
            async for event in events:
                yield event

    async def _attempt(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        faults = self._server.faults(request.model)
        body = self._protocol.body(request)
        while True:
            answer = self._protocol.answer(request, faults)
            try:
                async with aclosing(
                    self._server.exchange(self._protocol.path, body, faults, answer)
                ) as frames:
                    async for frame in frames:
                        for event in answer.feed(frame):
                            yield event
                break
            except ModelRequestRefused as refusal:
                adapted = self._protocol.adapted(body, refusal)
                if adapted is None:
                    raise
                body = adapted
        for event in answer.finish():
            yield event


class CallIds:
    """Gives every call of an answer an id of its own.

    Some servers send none, or count from zero in every answer. Outputs are matched to calls by
    id and a command's identity hangs on it, so an id that is taken is replaced.
    """

    def __init__(self, request: ModelRequest) -> None:
        self._taken = {item.call_id for item in request.items if isinstance(item, FunctionCall)}

    def settle(self, call_id: str) -> str:
        if not call_id or call_id in self._taken:
            call_id = f"call_{uuid4().hex}"
        self._taken.add(call_id)
        return call_id


def refuses(refusal: ModelRequestRefused, field: str, words: str) -> bool:
    """Whether the server refused this field: it named it as such, or in its message."""
    if param := refusal.metadata.get("param"):
        return re.split(r"[.\[]", param)[0] == field
    return re.search(words, refusal.message, re.IGNORECASE) is not None


def without(body: Mapping[str, object], field: str) -> Body:
    return {key: value for key, value in body.items() if key != field}
