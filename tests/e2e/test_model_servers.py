"""`workroom run` with a model server that speaks in odd pieces and fails now and then."""

import json
from typing import Any

import pytest

from tests.e2e.place import Done, Place
from tests.orchestrator.models.said import begun_stream, call, chunk, message, response
from tests.orchestrator.models.server import (
    Reply,
    RunningServer,
    drop,
    events,
    running_server,
    status,
    stream,
)

pytestmark = [pytest.mark.docker, pytest.mark.timeout(120)]

ARGUMENTS = json.dumps(
    {"commands": [{"command": "echo töp | tee outputs/a.txt"}, {"command": "echo >&2 two; exit 3"}]}
)
ANSWER = "It says töp. 🙂"


def calling(protocol: str) -> bytes:
    """An answer with one call, its arguments in several pieces."""
    half = len(ARGUMENTS) // 2
    if protocol == "chat":
        first = {"index": 0, "id": "c1", "type": "function"}
        return events(
            chunk({"role": "assistant", "content": "I look."}),
            chunk({"tool_calls": [first | {"function": {"name": "shell", "arguments": ""}}]}),
            chunk({"tool_calls": [{"index": 0, "function": {"arguments": ARGUMENTS[:half]}}]}),
            chunk({"tool_calls": [{"index": 0, "function": {"arguments": ARGUMENTS[half:]}}]}),
            chunk(finish="tool_calls"),
            {"choices": [], "usage": {"prompt_tokens": 11, "completion_tokens": 7}},
            "[DONE]",
        )
    item = call("shell", ARGUMENTS, id="fc1", call_id="c1")
    usage = {"input_tokens": 11, "output_tokens": 7}
    return events(
        {"type": "response.output_item.added", "output_index": 0, "item": item | {"arguments": ""}},
        {
            "type": "response.function_call_arguments.delta",
            "output_index": 0,
            "item_id": "fc1",
            "delta": ARGUMENTS[:half],
        },
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {"type": "response.completed", "response": response(item, usage=usage)},
    )


def answering(protocol: str) -> bytes:
    if protocol == "chat":
        return events(
            *(chunk({"content": letter}) for letter in ANSWER),
            chunk(finish="stop"),
            {"choices": [], "usage": {"prompt_tokens": 23, "completion_tokens": 5}},
            "[DONE]",
        )
    usage = {"input_tokens": 23, "output_tokens": 5}
    said = message(ANSWER, id="m")
    delta = {"type": "response.output_text.delta", "output_index": 0, "item_id": "m"}
    return events(
        {"type": "response.output_item.added", "output_index": 0, "item": message("", id="m")},
        *(delta | {"delta": letter} for letter in ANSWER),
        {"type": "response.output_item.done", "output_index": 0, "item": said},
        {"type": "response.completed", "response": response(said, usage=usage)},
    )


def pieces(data: bytes) -> Reply:
    """The bytes in pieces of one to seven, through characters and line ends."""
    cut, at = [], 0
    while at < len(data):
        size = 1 + (at * 7919) % 7
        cut.append(data[at : at + size])
        at += size
    return stream(*cut)


async def ask(place: Place, server: RunningServer, protocol: str) -> Done:
    words = ("--base-url", server.base_url, "--model", "m-1", "--protocol", protocol, "--json")
    return await place.workroom(
        "run", "What does it say?", *words, "--out", "out", ORCHESTRATOR_MODEL_API_KEY="sk-e2e"
    )


def results(protocol: str, body: dict[str, Any]) -> list[str]:
    """The results of calls that a request carries."""
    if protocol == "chat":
        return [each["content"] for each in body["messages"] if each["role"] == "tool"]
    return [each["output"] for each in body["input"] if each.get("type") == "function_call_output"]


@pytest.mark.parametrize("protocol", ["responses", "chat"])
async def test_a_turn_is_driven_through_faults_by_a_server_that_streams(up, protocol):
    async with running_server() as server:
        server.replies.extend(
            [
                status(429, {"error": {"message": "slow down"}}, {"retry-after-ms": "50"}),
                status(500, "<html>oops</html>"),
                drop(begun_stream(protocol, "I lo")),
                pieces(calling(protocol)),
                drop(answering(protocol)[:-200]),
                pieces(answering(protocol)),
            ]
        )
        done = await ask(up, server, protocol)
    assert done.code == 0, done.err
    assert not server.replies
    for received in server.received:
        ending = "/v1/chat/completions" if protocol == "chat" else "/v1/responses"
        assert received.path == ending
        assert received.headers["authorization"] == "Bearer sk-e2e"
        assert received.body["model"] == "m-1" and received.body["stream"] is True
    (result,) = results(protocol, server.received[-1].body)
    assert "töp" in result and "two" in result and "3" in result
    assert results(protocol, server.received[3].body) == []

    assert done.result["answer"] == ANSWER
    assert (up.root / "out" / "a.txt").read_text() == "töp\n"
    assert done.result["artifacts"] == ["out/a.txt"]
    agent = done.result["turn"]["usage"]["agent"]
    assert (agent["inputTokens"], agent["outputTokens"]) == ("34", "12")
    assert "sk-e2e" not in done.out + done.err


@pytest.mark.parametrize("protocol", ["responses", pytest.param("chat", marks=pytest.mark.slow)])
async def test_the_deployments_own_model_is_used_where_one_is_configured(place, protocol):
    async with running_server() as server:
        server.always = pieces(answering(protocol))
        settings = {
            "ORCHESTRATOR_MODEL_PROTOCOL": protocol,
            "ORCHESTRATOR_MODEL_BASE_URL": server.base_url,
            "ORCHESTRATOR_MODEL_API_KEY": "sk-own",
            "ORCHESTRATOR_MODEL": "m-own",
        }
        done = await place.workroom("run", "Hello?", **settings)
    assert done.code == 0, done.err
    assert ANSWER in done.out and "script" not in done.out
    (received,) = server.received
    assert received.body["model"] == "m-own"
    assert received.headers["authorization"] == "Bearer sk-own"
