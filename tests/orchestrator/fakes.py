"""Owns stand-ins that the orchestrator's own tests use beside the runtime's and the proxy's."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

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

    An answer is a status other than 200, the text to say, or the commands to run, each by a call
    of its own named `call_1` and so on. `waiting` is set while a request waits for `may_answer`;
    `heard` has the requests' bodies.
    """

    def __init__(self) -> None:
        self.answers: list[int | str | list[str]] = []
        self.heard: list[dict[str, Any]] = []
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
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
            self.heard.append(json.loads(await reader.readexactly(length)))
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


def _response(answer: int | str | list[str]) -> bytes:
    if isinstance(answer, int):
        body = b'{"error": {"message": "no", "type": "x", "code": null}}'
        head = f"HTTP/1.1 {answer} X\r\nContent-Type: application/json\r\n"
    else:
        body = (_events(answer) if isinstance(answer, str) else _calls(answer)).encode()
        head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
    return f"{head}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body


def _calls(commands: list[str]) -> str:
    items = [
        {
            "type": "function_call",
            "id": f"fc_{number}",
            "call_id": f"call_{number}",
            "name": "shell",
            "arguments": json.dumps({"commands": [{"command": command}]}),
            "status": "completed",
        }
        for number, command in enumerate(commands, 1)
    ]
    usage = {"input_tokens": 10, "output_tokens": 2, "total_tokens": 12}
    response = {"id": "r", "status": "completed", "output": items, "usage": usage}
    events: list[dict[str, Any]] = [
        {"type": "response.output_item.done", "output_index": index, "item": item}
        for index, item in enumerate(items)
    ]
    events.append({"type": "response.completed", "response": response})
    return "".join(f"data: {json.dumps(event)}\n\n" for event in events)


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
