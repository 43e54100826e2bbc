from datetime import timedelta

import pytest

from orchestrator.models.chat import ChatProtocol
from orchestrator.models.errors import (
    ModelProtocolMismatch,
    ModelServerFailed,
    ModelStreamBroken,
)
from orchestrator.models.model import (
    FinishReason,
    FunctionCall,
    FunctionCallOutput,
    ImageUrl,
    JsonSchema,
    Message,
    ModelRequest,
    Reasoning,
    Text,
    Usage,
)
from tests.orchestrator.models.said import SHELL, ask, chunk, read
from tests.orchestrator.models.server import events, status, stream

USAGE = {
    "prompt_tokens": 10,
    "completion_tokens": 6,
    "total_tokens": 16,
    "prompt_tokens_details": {"cached_tokens": 4},
    "completion_tokens_details": {"reasoning_tokens": 2},
}


def tool(index=None, id=None, name=None, arguments=None):
    fields = {"index": index, "id": id}
    function = {"name": name, "arguments": arguments}
    entry = {key: value for key, value in fields.items() if value is not None}
    entry["function"] = {key: value for key, value in function.items() if value is not None}
    return entry


def calls(*entries):
    return chunk({"tool_calls": [*entries]})


TRANSCRIPT = events(
    chunk({"role": "assistant", "content": ""}),
    chunk({"reasoning_content": "think"}),
    chunk({"content": "né "}),
    chunk({"content": "\u2028😀"}),
    calls(tool(0, "call_1", "shell", "")),
    calls(tool(0, arguments='{"a":')),
    calls(tool(1, "call_2", "shell", '{"b"')),
    calls(tool(0, arguments="1}"), tool(1, arguments=":2}")),
    chunk(finish="tool_calls"),
    {"choices": [], "usage": USAGE},
    "[DONE]",
)
ITEMS = [
    Reasoning("", summary=("think",)),
    Message.of("assistant", "né \u2028😀"),
    FunctionCall("call_1", "shell", '{"a":1}'),
    FunctionCall("call_2", "shell", '{"b":2}'),
]


async def test_an_answer_comes_as_deltas_then_items_then_completion(server, make_model):
    server.always = stream(TRANSCRIPT)
    heard = await ask(make_model("chat"))
    assert heard.items == ITEMS
    assert (heard.text, heard.thoughts) == ("né \u2028😀", "think")
    assert heard.completed.finish_reason is FinishReason.TOOL_CALLS
    assert heard.completed.usage == Usage(10, 4, 6, 2, 16)


def test_a_transcript_cut_at_any_byte_reads_the_same():
    for at in range(len(TRANSCRIPT) + 1):
        heard = read(ChatProtocol(), TRANSCRIPT[:at], TRANSCRIPT[at:])
        assert (heard.items, heard.text) == (ITEMS, "né \u2028😀"), f"cut at {at}"


@pytest.mark.parametrize("end", [b"\n", b"\r", b"\r\n"])
async def test_any_line_end_and_single_bytes_read_the_same(server, make_model, end):
    transcript = TRANSCRIPT.replace(b"\n", end)
    server.always = stream(*(bytes([byte]) for byte in transcript))
    assert (await ask(make_model("chat"))).items == ITEMS


async def test_the_request_says_what_was_asked(server, make_model):
    server.always = stream(TRANSCRIPT)
    image = ImageUrl("data:image/png;base64,AA==", "low")
    request = ModelRequest(
        "m-1",
        [
            Message.of("developer", "at the start"),
            Message("user", (Text("see"), image)),
            Reasoning("rs_0", "opaque"),
            Message.of("assistant", "so"),
            FunctionCall("call_0", "shell", "{}"),
            FunctionCall("call_1", "shell", "{}"),
            Message.of("developer", "in between"),
            FunctionCallOutput("call_1", (Text("pic"), image)),
            FunctionCallOutput("call_0", "done"),
            FunctionCall("call_2", "shell", "{}"),
            FunctionCallOutput("call_2", "late"),
        ],
        instructions="be brief",
        tools=[SHELL],
        tool_choice="required",
        parallel_tool_calls=False,
        reasoning_effort="high",
        max_output_tokens=99,
        text_format=JsonSchema({"type": "object"}),
    )
    await ask(make_model("chat"), request)
    received = server.received[0]
    assert received.path == "/v1/chat/completions"
    url = {"url": "data:image/png;base64,AA==", "detail": "low"}

    def said(content, *ids):
        function = {"name": "shell", "arguments": "{}"}
        made = [{"id": id, "type": "function", "function": function} for id in ids]
        return {"role": "assistant", "content": content, "tool_calls": made}

    assert received.body == {
        "model": "m-1",
        "stream": True,
        "stream_options": {"include_usage": True},
        "messages": [
            {"role": "system", "content": "be brief\n\nat the start"},
            {"role": "user", "content": [
                {"type": "text", "text": "see"}, {"type": "image_url", "image_url": url}]},
            said("so", "call_0", "call_1"),
            {"role": "tool", "tool_call_id": "call_0", "content": "done"},
            {"role": "tool", "tool_call_id": "call_1", "content": "pic"},
            {"role": "user", "content": [
                {"type": "text", "text": "The images that the tool returned:"},
                {"type": "image_url", "image_url": url}]},
            {"role": "system", "content": "in between"},
            said(None, "call_2"),
            {"role": "tool", "tool_call_id": "call_2", "content": "late"},
        ],
        "tools": [{"type": "function", "function": {
            "name": "shell", "description": "Run commands.", "parameters": {"type": "object"}}}],
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "reasoning_effort": "high",
        "max_tokens": 99,
        "response_format": {"type": "json_schema", "json_schema": {
            "name": "answer", "schema": {"type": "object"}, "strict": True}},
    }  # fmt: skip


async def test_a_server_that_ignores_stream_is_read_as_whole_json(server, make_model):
    said = {"role": "assistant", "content": "né \u2028😀", "reasoning_content": "think"}
    made = [tool(id="call_1", name="shell", arguments='{"a":1}')]
    made.append(tool(id="call_2", name="shell", arguments='{"b":2}'))
    choice = {"index": 0, "message": said | {"tool_calls": made}, "finish_reason": "tool_calls"}
    server.always = status(200, {"object": "chat.completion", "choices": [choice], "usage": USAGE})
    heard = await ask(make_model("chat"))
    assert (heard.items, heard.text) == (ITEMS, "né \u2028😀")
    assert heard.completed.usage == Usage(10, 4, 6, 2, 16)


@pytest.mark.parametrize(
    "chunks",
    [
        [calls(tool(id="x", name="shell", arguments='{"a":')), calls(tool(arguments="1}")),
         calls(tool(id="y", name="shell", arguments='{"b":')), calls(tool(arguments="2}"))],
        [calls(tool(name="shell", arguments='{"a":1}'), tool(name="shell", arguments='{"b":2}'))],
        [calls(tool(0, "x", "shell", '{"a":1}')), calls(tool(0, "y", "shell", '{"b":2}'))],
        [calls(tool(0, name="shell", arguments='{"a":1}')),
         calls(tool(0, name="shell", arguments='{"b":2}'))],
        [calls(tool(id="x", name="shell")), calls(tool(id="y", name="shell")),
         calls(tool(id="x", arguments='{"a":1}')), calls(tool(id="y", arguments='{"b":2}'))],
        [calls(tool(0, "x", "sh")), calls(tool(0, name="ell", arguments='{"a":')),
         calls(tool(0, "x", "shell", arguments="1}")), calls(tool(4, "y", "shell", '{"b":2}'))],
        [calls(tool(0, "x", "shell", '{"a":1}')), calls(tool(1, "y", "shell", '{"b":2}')),
         calls(tool(0, "x", "shell", '{"a":1}'), tool(1, "y", "shell", '{"b":2}'))],
        [calls(tool(0, "same", "shell", '{"a":1}'), tool(1, "same", "shell", '{"b":2}'))],
    ],
    ids=["no indexes", "no ids and no indexes", "every index 0", "every index 0 and no ids",
         "by id alone", "name in pieces, then repeated", "whole arguments repeated", "same id"],
)  # fmt: skip
async def test_calls_are_told_apart(server, make_model, chunks):
    server.always = stream(events(*chunks, chunk(finish="tool_calls"), "[DONE]"))
    first, second = (await ask(make_model("chat"))).items
    assert (first.name, first.arguments) == ("shell", '{"a":1}')
    assert (second.name, second.arguments) == ("shell", '{"b":2}')
    assert first.call_id and second.call_id and first.call_id != second.call_id


async def test_arguments_may_be_an_object_and_may_be_missing(server, make_model):
    made = calls(tool(0, "x", "shell", {"a": 1}), tool(1, "y", "shell"))
    server.always = stream(events(made, chunk(finish="stop")))
    heard = await ask(make_model("chat"))
    assert [item.arguments for item in heard.items] == ['{"a": 1}', "{}"]
    assert heard.completed.finish_reason is FinishReason.TOOL_CALLS


async def test_the_old_function_call_is_understood(server, make_model):
    first = chunk({"function_call": {"name": "shell", "arguments": '{"a"'}})
    then = chunk({"function_call": {"arguments": ":1}"}})
    server.always = stream(events(first, then, chunk(finish="function_call"), "[DONE]"))
    (item,) = (await ask(make_model("chat"))).items
    assert (item.name, item.arguments) == ("shell", '{"a":1}')


@pytest.mark.parametrize(
    "end",
    [[chunk(finish="stop"), "[DONE]"], [chunk(finish="stop")], ["[DONE]"]],
    ids=["both marks", "no [DONE]", "no finish_reason"],
)
async def test_either_mark_ends_an_answer(server, make_model, end):
    server.always = stream(events(chunk({"content": "x"}), *end))
    heard = await ask(make_model("chat"))
    assert heard.items == [Message.of("assistant", "x")]
    assert heard.completed.usage is None


async def test_neither_mark_is_a_broken_stream(server, make_model):
    server.always = stream(events(chunk({"content": "x"})))
    with pytest.raises(ModelStreamBroken, match="finish_reason"):
        await ask(make_model("chat", attempts=1))


async def test_an_answer_cut_for_length_has_no_half_call(server, make_model):
    made = calls(tool(0, "x", "shell", '{"a":1}'), tool(1, "y", "shell", '{"b":'))
    server.always = stream(events(made, chunk(finish="length"), "[DONE]"))
    heard = await ask(make_model("chat"))
    assert heard.items == [FunctionCall("x", "shell", '{"a":1}')]
    assert heard.completed.finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize(
    "refusal",
    [
        {"error": {"message": "Unknown field", "param": "stream_options"}},
        {"detail": [{"loc": ["body", "stream_options"], "msg": "Extra inputs are not permitted"}]},
    ],
)
async def test_refused_stream_options_are_left_out_from_then_on(server, make_model, refusal):
    server.replies.append(status(422, refusal))
    server.always = stream(TRANSCRIPT)
    model = make_model("chat", attempts=1)
    assert (await ask(model)).items == ITEMS
    await ask(model)
    sent = ["stream_options" in received.body for received in server.received]
    assert sent == [True, False, False]


async def test_refused_max_tokens_are_asked_for_by_the_new_name(server, make_model):
    problem = "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead."
    server.replies.append(status(400, {"error": {"message": problem, "param": "max_tokens"}}))
    server.always = stream(TRANSCRIPT)
    request = ModelRequest("m-1", [Message.of("user", "hi")], max_output_tokens=9)
    await ask(make_model("chat", attempts=1), request)
    assert server.received[0].body["max_tokens"] == 9
    assert server.received[1].body["max_completion_tokens"] == 9
    assert "max_tokens" not in server.received[1].body


async def test_text_in_parts_and_refusals_are_text(server, make_model):
    parts = chunk({"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]})
    server.always = stream(events(parts, chunk({"refusal": "c"}), chunk(finish="stop")))
    assert (await ask(make_model("chat"))).items == [Message.of("assistant", "abc")]


async def test_other_choices_and_odd_chunks_are_passed_over(server, make_model):
    other = {"choices": [{"index": 1, "delta": {"content": "no"}, "finish_reason": "stop"}]}
    odd = [{"choices": None}, {"choices": [None, {"delta": None}]}, {}, {"usage": "?"}]
    server.always = stream(events(*odd, other, chunk({"content": "x"}), chunk(finish="stop")))
    assert (await ask(make_model("chat"))).items == [Message.of("assistant", "x")]


@pytest.mark.parametrize(
    "event",
    [
        {"error": {"message": "ouch", "code": 502}},
        {"error": "ouch"},
        {"choices": [{"delta": {}, "error": {"message": "ouch"}, "finish_reason": "error"}]},
        chunk(finish="error"),
    ],
)
async def test_an_error_inside_the_stream_is_that_error(server, make_model, event):
    server.always = stream(events(chunk({"content": "x"}), event))
    with pytest.raises(ModelServerFailed):
        await ask(make_model("chat", attempts=1))


async def test_a_server_that_dawdles_after_the_end_does_not_hold_us(server, make_model):
    server.always = server.stall(events(chunk({"content": "x"}), chunk(finish="stop")))
    heard = await ask(make_model("chat", settle=timedelta(milliseconds=20)))
    assert heard.items == [Message.of("assistant", "x")]
    await server.disconnected.wait()


async def test_a_server_of_the_other_protocol_is_recognised(server, make_model):
    server.always = status(200, {"object": "response", "output": []})
    with pytest.raises(ModelProtocolMismatch, match="ORCHESTRATOR_MODEL_PROTOCOL"):
        await ask(make_model("chat"))
