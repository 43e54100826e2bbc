"""Owns stand-ins that the orchestrator's own tests use beside the runtime's and the proxy's."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc

from workroom.reviewer.v1 import reviewer_pb2 as pb
from workroom.reviewer.v1 import reviewer_pb2_grpc as rpc


class FakeReviewer(rpc.ReviewerServiceServicer):
    """Refuses what has `forbidden` in it and allows the rest; remembers what it was asked."""

    def __init__(self, directory: Path) -> None:
        self.address = f"unix:{directory}/reviewer.sock"
        self.asked: list[pb.ReviewActionRequest] = []

    @asynccontextmanager
    async def serving(self) -> AsyncIterator["FakeReviewer"]:
        server = grpc.aio.server()
        rpc.add_ReviewerServiceServicer_to_server(self, server)
        server.add_insecure_port(self.address)
        await server.start()
        try:
            yield self
        finally:
            await server.stop(None)

    async def ReviewAction(self, request, context):
        self.asked.append(request)
        refused = "forbidden" in request.command.script
        outcome = pb.Decision.OUTCOME_DENIED if refused else pb.Decision.OUTCOME_ALLOWED
        decision = pb.Decision(
            id=f"dec_{request.item_id}", outcome=outcome, reason="it says forbidden"
        )
        return pb.ReviewActionResponse(decision=decision)


class ModelServer:
    """A Responses server: answers each request with the next of its answers, when it may.

    An answer is a status other than 200, or the text to say. `waiting` is set while a request
    waits for `may_answer`.
    """

    def __init__(self) -> None:
        self.answers: list[int | str] = []
        self.requests = 0
        self.waiting = asyncio.Event()
        self.may_answer = asyncio.Event()
        self.gone = asyncio.Event()
        self.address = ""

    @asynccontextmanager
    async def serving(self) -> AsyncIterator["ModelServer"]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        self.address = f"http://127.0.0.1:{port}/v1"
        async with server:
            yield self

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            self.requests += 1
            self.waiting.set()
            leaving = asyncio.ensure_future(_drained(reader))
            allowed = asyncio.ensure_future(self.may_answer.wait())
            done, _ = await asyncio.wait([leaving, allowed], return_when=asyncio.FIRST_COMPLETED)
            if allowed in done:
                writer.write(_response(self.answers.pop(0)))
                await writer.drain()
            else:
                self.gone.set()
            leaving.cancel()
            allowed.cancel()
        finally:
            writer.close()


async def _drained(reader: asyncio.StreamReader) -> None:
    while await reader.read(65536):
        pass


def _response(answer: int | str) -> bytes:
    if isinstance(answer, int):
        body = b'{"error": {"message": "no", "type": "x", "code": null}}'
        head = f"HTTP/1.1 {answer} X\r\nContent-Type: application/json\r\n"
    else:
        body = _events(answer).encode()
        head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
    return f"{head}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body


def _events(text: str) -> str:
    item = (
        '{"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", '
        f'"content": [{{"type": "output_text", "text": "{text}", "annotations": []}}]}}'
    )
    usage = '{"input_tokens": 10, "output_tokens": 2, "total_tokens": 12}'
    return (
        f'data: {{"type": "response.output_text.delta", "output_index": 0, "item_id": "msg_1", '
        f'"content_index": 0, "delta": "{text}"}}\n\n'
        f'data: {{"type": "response.output_item.done", "output_index": 0, "item": {item}}}\n\n'
        f'data: {{"type": "response.completed", "response": {{"id": "r", "status": "completed", '
        f'"output": [{item}], "usage": {usage}}}}}\n\n'
    )
