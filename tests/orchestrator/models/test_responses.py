import json
from datetime import timedelta

import pytest

from orchestrator.models.errors import (
    ContextLengthExceeded,
    ModelProtocolMismatch,
    ModelRateLimited,
    ModelRequestRefused,
    ModelServerFailed,
    ModelStreamBroken,
)
from orchestrator.models.model import (
    FinishReason,
    FunctionCall,
    FunctionCallOutput,
    ImageUrl,
    Item,
    JsonSchema,
    Message,
    ModelRequest,
    NamedTool,
    Reasoning,
    Text,
    Usage,
)
from orchestrator.models.responses import ResponsesProtocol
from tests.orchestrator.models.said import QUESTION, SHELL, ask, call, message, read, response
from tests.orchestrator.models.server import events, status, stream

PIXEL = "data:image/png;base64,AA=="
ARGUMENTS = '{"commands": ["ls \u2028 é"]}'
USAGE = {
    "input_tokens": 10,
    "input_tokens_details": {"cached_tokens": 4},
    "output_tokens": 6,
    "output_tokens_details": {"reasoning_tokens": 2},
    "total_tokens": 16,
}
REASONING = {
    "type": "reasoning",
    "id": "rs_1",
    "summary": [{"type": "summary_text", "text": "think"}],
    "encrypted_content": "opaque",
}


def added(index, item):
    return {"type": "response.output_item.added", "output_index": index, "item": item}


def done(index, item):
    return {"type": "response.output_item.done", "output_index": index, "item": item}


def delta(kind, index, item_id, text, **fields):
    place = {"output_index": index, "item_id": item_id}
    return {"type": f"response.{kind}.delta", "delta": text} | place | fields


SHELL_CALL = call("shell", ARGUMENTS, id="fc_1", call_id="call_1")
TRANSCRIPT = events(
    {"type": "response.created", "response": {"id": "resp_1", "status": "in_progress"}},
    added(0, {"type": "reasoning", "id": "rs_1"}),
    delta("reasoning_summary_text", 0, "rs_1", "think", summary_index=0),
    done(0, REASONING),
    added(1, message("", id="msg_1")),
    delta("output_text", 1, "msg_1", "né "),
    delta("output_text", 1, "msg_1", "\u2028😀"),
    done(1, message("né \u2028😀", id="msg_1")),
    added(2, SHELL_CALL | {"arguments": ""}),
    delta("function_call_arguments", 2, "fc_1", ARGUMENTS[:9]),
    delta("function_call_arguments", 2, "fc_1", ARGUMENTS[9:]),
    {"type": "response.function_call_arguments.done", "item_id": "fc_1", "arguments": ARGUMENTS},
    done(2, SHELL_CALL),
    {"type": "response.completed", "response": response(usage=USAGE)},
)
ITEMS = [
    Reasoning("rs_1", "opaque", ("think",)),
    Message.of("assistant", "né \u2028😀"),
    FunctionCall("call_1", "shell", ARGUMENTS),
]


async def test_an_answer_comes_as_deltas_then_items_then_completion(server, make_model):
    server.always = stream(TRANSCRIPT)
    heard = await ask(make_model("responses"))
    assert heard.items == ITEMS
    assert (heard.text, heard.thoughts) == ("né \u2028😀", "think")
    assert heard.completed.finish_reason is FinishReason.TOOL_CALLS
    assert heard.completed.usage == Usage(10, 4, 6, 2, 16)


def test_a_transcript_cut_at_any_byte_reads_the_same():
    for at in range(len(TRANSCRIPT) + 1):
        heard = read(ResponsesProtocol(), TRANSCRIPT[:at], TRANSCRIPT[at:])
        assert (heard.items, heard.text) == (ITEMS, "né \u2028😀"), f"cut at {at}"


@pytest.mark.parametrize("end", [b"\n", b"\r", b"\r\n"])
async def test_any_line_end_and_single_bytes_read_the_same(server, make_model, end):
    transcript = TRANSCRIPT.replace(b"\n", end)
    server.always = stream(*(bytes([byte]) for byte in transcript))
    assert (await ask(make_model("responses"))).items == ITEMS


async def test_the_request_says_what_was_asked(server, make_model):
    server.always = stream(TRANSCRIPT)
    request = ModelRequest(
        "m-1",
        [
            Message.of("developer", "note"),
            Message("user", (Text("see"), ImageUrl(PIXEL))),
            Reasoning("rs_0", "opaque", ("why",)),
            Reasoning("rs_lost"),
            FunctionCall("call_0", "shell", "{}"),
            FunctionCallOutput("call_0", "done"),
            Message.of("assistant", "so"),
        ],
        instructions="be brief",
        tools=[SHELL],
        tool_choice=NamedTool("shell"),
        parallel_tool_calls=True,
        reasoning_effort="high",
        reasoning_summary="auto",
        max_output_tokens=99,
        text_format=JsonSchema({"type": "object"}),
        verbosity="low",
    )
    await ask(make_model("responses"), request)
    received = server.received[0]
    assert received.path == "/v1/responses"
    assert received.headers["authorization"] == "Bearer sk-secret-0123456789"
    assert received.body == {
        "model": "m-1",
        "instructions": "be brief",
        "stream": True,
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "input": [
            {"type": "message", "role": "developer", "content": [
                {"type": "input_text", "text": "note"}]},
            {"type": "message", "role": "user", "content": [
                {"type": "input_text", "text": "see"},
                {"type": "input_image", "image_url": PIXEL, "detail": "auto"}]},
            {"type": "reasoning", "id": "rs_0", "encrypted_content": "opaque",
             "summary": [{"type": "summary_text", "text": "why"}]},
            {"type": "function_call", "call_id": "call_0", "name": "shell", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "call_0", "output": "done"},
            {"type": "message", "role": "assistant", "content": [
                {"type": "output_text", "text": "so"}]},
        ],
        "tools": [{"type": "function", "name": "shell", "description": "Run commands.",
                   "parameters": {"type": "object"}, "strict": False}],
        "tool_choice": {"type": "function", "name": "shell"},
        "parallel_tool_calls": True,
        "reasoning": {"effort": "high", "summary": "auto"},
        "max_output_tokens": 99,
        "text": {"format": {"type": "json_schema", "name": "answer", "schema": {"type": "object"},
                            "strict": True}, "verbosity": "low"},
    }  # fmt: skip


async def test_what_is_not_asked_is_not_sent(server, make_model):
    server.always = stream(TRANSCRIPT)
    await ask(make_model("responses", api_key=""), ModelRequest("m-1", [Message.of("user", "hi")]))
    assert set(server.received[0].body) == {"model", "input", "stream", "store", "include"}
    assert "authorization" not in server.received[0].headers


async def test_a_server_that_ignores_stream_is_read_as_whole_json(server, make_model):
    output = [REASONING, message("né \u2028😀"), call("shell", ARGUMENTS, call_id="call_1")]
    server.always = status(200, response(*output, usage=USAGE))
    heard = await ask(make_model("responses"))
    assert (heard.items, heard.text) == (ITEMS, "né \u2028😀")
    assert heard.completed.usage == Usage(10, 4, 6, 2, 16)


async def test_items_that_only_the_last_event_has_are_read(server, make_model):
    output = [message("one", id="a"), call("shell", "{}", call_id="call_1")]
    server.always = stream(
        events(
            {"type": "response.output_text.delta", "delta": "one"},
            {"type": "response.completed", "response": response(*output)},
        )
    )
    heard = await ask(make_model("responses"))
    assert heard.text == "one"
    assert heard.items == [
        Message.of("assistant", "one"),
        FunctionCall("call_1", "shell", "{}"),
    ]


@pytest.mark.parametrize("ids", ["none", "different"])
async def test_an_item_told_twice_without_a_common_id_is_one(server, make_model, ids):
    first = {} if ids == "none" else {"id": "early"}
    last = {} if ids == "none" else {"id": "late"}
    output = [message("one", **last), call("shell", "{}", **last), call("shell", "{}")]
    server.always = stream(
        events(
            done(0, message("one", **first)),
            done(0, call("shell", "{}")),
            done(0, call("shell", "{}")),
            {"type": "response.completed", "response": response(*output)},
        )
    )
    heard = await ask(make_model("responses"))
    assert [type(item) for item in heard.items] == [Message, FunctionCall, FunctionCall]
    assert heard.text == "one"


async def test_events_without_ids_and_indexes_are_put_together(server, make_model):
    server.always = stream(
        events(
            {"type": "response.output_item.added", "item": call("shell", "")},
            {"type": "response.function_call_arguments.delta", "delta": '{"a":'},
            {"type": "response.function_call_arguments.delta", "delta": "1}"},
            {"type": "response.output_item.done", "item": {"type": "function_call"}},
            {"type": "response.output_item.added", "item": call("shell", "")},
            {"type": "response.function_call_arguments.delta", "delta": '{"b":2}'},
            {"type": "response.completed", "response": {"id": "resp_1"}},
        )
    )
    first, second = (await ask(make_model("responses"))).items
    assert isinstance(first, FunctionCall) and isinstance(second, FunctionCall)
    assert (first.arguments, second.arguments) == ('{"a":1}', '{"b":2}')
    assert first.call_id and second.call_id and first.call_id != second.call_id


async def test_arguments_may_be_an_object_and_may_be_missing(server, make_model):
    output = [call("shell", "") | {"arguments": {"a": 1}}, call("shell", "", call_id="call_1")]
    server.always = status(200, response(*output))
    heard = await ask(make_model("responses"))
    assert [item.arguments for item in heard.items] == ['{"a": 1}', "{}"]


async def test_a_call_id_that_the_context_has_already_is_replaced(server, make_model):
    server.always = status(200, response(call("shell", "{}", call_id="call_0")))
    earlier = FunctionCall("call_0", "shell", "{}")
    items: list[Item] = [Message.of("user", "hi"), earlier, FunctionCallOutput("call_0", "x")]
    request = ModelRequest("m-1", items)
    (item,) = (await ask(make_model("responses"), request)).items
    assert item.call_id != "call_0"


async def test_missing_usage_is_none(server, make_model):
    server.always = status(200, response(message("x"), usage=None))
    assert (await ask(make_model("responses"))).completed.usage is None


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("max_output_tokens", FinishReason.LENGTH),
        ("content_filter", FinishReason.CONTENT_FILTER),
    ],
)
async def test_an_incomplete_answer_says_why_and_has_no_half_call(
    server, make_model, reason, expected
):
    half = call("shell", '{"a": ', call_id="call_1", status="incomplete")
    end = response(status="incomplete", incomplete_details={"reason": reason})
    server.always = stream(
        events(
            done(0, message("so far")),
            done(1, half),
            {"type": "response.incomplete", "response": end},
        )
    )
    heard = await ask(make_model("responses"))
    assert heard.completed.finish_reason is expected
    assert heard.items == [Message.of("assistant", "so far")]


@pytest.mark.parametrize(
    ("event", "error"),
    [
        ({"type": "error", "code": "rate_limit_exceeded", "message": "slow"}, ModelRateLimited),
        ({"type": "error", "error": {"type": "server_error"}}, ModelServerFailed),
        ({"error": {"code": 503, "message": "ouch"}}, ModelServerFailed),
        ({"type": "response.failed", "response": {"error": {
            "code": "context_length_exceeded", "message": "long"}}}, ContextLengthExceeded),
        ({"type": "response.failed", "response": {"error": {
            "code": "invalid_prompt", "message": "no"}}}, ModelRequestRefused),
        ({"type": "response.failed", "response": {"status": "failed"}}, ModelServerFailed),
        ({"type": "response.failed"}, ModelServerFailed),
    ],
)  # fmt: skip
async def test_an_error_inside_the_stream_is_that_error(server, make_model, event, error):
    server.always = stream(events({"type": "response.created"}, event))
    with pytest.raises(error):
        await ask(make_model("responses", attempts=1))


async def test_an_error_object_with_status_200_is_an_error(server, make_model):
    server.always = status(200, {"error": {"code": "server_error", "message": "ouch"}})
    with pytest.raises(ModelServerFailed, match="ouch"):
        await ask(make_model("responses", attempts=1))


async def test_a_stream_that_forgets_its_last_event_but_says_done_counts(server, make_model):
    server.always = stream(events(done(0, message("x")), "[DONE]"))
    assert (await ask(make_model("responses"))).items == [Message.of("assistant", "x")]


async def test_a_stream_without_its_end_is_broken(server, make_model):
    server.always = stream(events({"type": "response.output_text.delta", "delta": "x"}))
    with pytest.raises(ModelStreamBroken, match=r"without response\.completed"):
        await ask(make_model("responses", attempts=1))


async def test_a_server_of_the_other_protocol_is_recognised(server, make_model):
    server.always = status(200, {"object": "chat.completion", "choices": []})
    with pytest.raises(ModelProtocolMismatch, match="ORCHESTRATOR_MODEL_PROTOCOL"):
        await ask(make_model("responses"))


async def test_a_server_that_holds_the_connection_after_the_end_does_not_hold_us(
    server, make_model
):
    server.always = server.stall(TRANSCRIPT)
    heard = await ask(make_model("responses", settle=timedelta(milliseconds=20)))
    assert heard.items == ITEMS
    await server.disconnected.wait()


async def test_a_refused_include_is_left_out_from_then_on(server, make_model):
    refusal = {"error": {"message": "Unknown parameter: 'include'.", "param": "include"}}
    server.replies.append(status(400, refusal))
    server.always = stream(TRANSCRIPT)
    model = make_model("responses", attempts=1)
    assert (await ask(model)).items == ITEMS
    await ask(model)
    assert ["include" in received.body for received in server.received] == [True, False, False]


async def test_reasoning_that_the_server_cannot_read_is_left_out(server, make_model):
    error = {"code": "invalid_encrypted_content", "message": "cannot verify", "param": None}
    server.replies.append(status(400, {"error": error}))
    server.always = stream(TRANSCRIPT)
    request = ModelRequest("m-1", [Message.of("user", "hi"), Reasoning("rs", "foreign")])
    await ask(make_model("responses", attempts=1), request)
    sent = [[item["type"] for item in received.body["input"]] for received in server.received]
    assert sent == [["message", "reasoning"], ["message"]]


async def test_a_refusal_is_told_as_text(server, make_model):
    item = message("") | {"content": [{"type": "refusal", "refusal": "I will not."}]}
    server.always = status(200, response(item))
    assert (await ask(make_model("responses"), QUESTION)).text == "I will not."


async def test_a_lone_surrogate_does_not_stop_the_request(server, make_model):
    server.always = stream(TRANSCRIPT)
    await ask(make_model("responses"), ModelRequest("m-1", [Message.of("user", "a\ud800b")]))
    assert json.dumps(server.received[0].body["input"]).count("a?b") == 1
