"""Owns the Chat Completions protocol: how a request is written, and where answers are read."""

from collections import defaultdict, deque
from collections.abc import Iterator, Sequence

from orchestrator.models.chat_answer import ChatAnswer
from orchestrator.models.errors import ModelRequestRefused
from orchestrator.models.faults import Faults
from orchestrator.models.model import (
    FunctionCall,
    FunctionCallOutput,
    FunctionTool,
    ImageUrl,
    Item,
    JsonSchema,
    Message,
    ModelRequest,
    NamedTool,
    Part,
    Reasoning,
    Text,
)
from orchestrator.models.server_model import Body, refuses, without

_TOOL_IMAGES = "The images that the tool returned:"


class ChatProtocol:
    """Speaks `POST /chat/completions`.

    Instructions and developer messages go as `system`, which every server knows. A server that
    refuses `stream_options` is asked again without it, one that refuses `max_tokens` with its
    successor `max_completion_tokens`; from then on, too. The old name is tried first because
    who does not know it says so, while the new one is silently passed over by many.
    """

    path = "chat/completions"

    def __init__(self) -> None:
        self._usage_refused = False
        self._limit_field = "max_tokens"

    def body(self, request: ModelRequest) -> Body:
        body: Body = {
            "model": request.model,
            "messages": list(_messages(request)),
            "stream": True,
            "stream_options": None if self._usage_refused else {"include_usage": True},
            "tools": [_tool(tool) for tool in request.tools] or None,
            "tool_choice": _choice(request.tool_choice),
            "parallel_tool_calls": request.parallel_tool_calls,
            "reasoning_effort": request.reasoning_effort,
            "response_format": _format(request),
            "verbosity": request.verbosity,
            self._limit_field: request.max_output_tokens,
            "temperature": request.temperature,
            "top_p": request.top_p,
            "service_tier": request.service_tier,
            "prompt_cache_key": request.prompt_cache_key,
        }
        return {key: value for key, value in body.items() if value is not None}

    def answer(self, request: ModelRequest, faults: Faults) -> ChatAnswer:
        return ChatAnswer(request, faults)

    def adapted(self, body: Body, refusal: ModelRequestRefused) -> Body | None:
        usage_words = r"stream_options|include_usage"
        if "stream_options" in body and refuses(refusal, "stream_options", usage_words):
            self._usage_refused = True
            return without(body, "stream_options")
        if "max_tokens" in body and refuses(refusal, "max_tokens", r"\bmax_tokens\b"):
            self._limit_field = "max_completion_tokens"
            limit = body["max_tokens"]
            return without(body, "max_tokens") | {"max_completion_tokens": limit}
        return None


def _messages(request: ModelRequest) -> Iterator[Body]:
    items: deque[Item] = deque(item for item in request.items if not isinstance(item, Reasoning))
    opening = [request.instructions] if request.instructions else []
    while items and isinstance(first := items[0], Message) and first.role == "developer":
        opening.append(first.text)
        items.popleft()
    if opening:
        # One system message at the start: some chat templates allow no more.
        yield {"role": "system", "content": "\n\n".join(opening)}
    outputs = _outputs(items)
    while items:
        match items.popleft():
            case Message("assistant") as message:
                yield from _said(message, _calls(items), outputs)
            case FunctionCall() as call:
                items.appendleft(call)
                yield from _said(None, _calls(items), outputs)
            case Message(role, content):
                role_there = "system" if role == "developer" else "user"
                yield {"role": role_there, "content": _content(content)}
            case _:
                pass  # An output was sent with its call.


def _outputs(items: Sequence[Item]) -> dict[str, deque[FunctionCallOutput]]:
    outputs: dict[str, deque[FunctionCallOutput]] = defaultdict(deque)
    for item in items:
        if isinstance(item, FunctionCallOutput):
            outputs[item.call_id].append(item)
    return outputs


def _calls(items: deque[Item]) -> list[FunctionCall]:
    calls = []
    while items and isinstance(items[0], FunctionCall):
        call = items.popleft()
        assert isinstance(call, FunctionCall)
        calls.append(call)
    return calls


def _said(
    message: Message | None,
    calls: list[FunctionCall],
    outputs: dict[str, deque[FunctionCallOutput]],
) -> Iterator[Body]:
    """An assistant message with its calls and, as the protocol demands, their outputs at once."""
    said: Body = {"role": "assistant", "content": message.text if message else None}
    if calls:
        said["tool_calls"] = [
            {
                "id": call.call_id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in calls
        ]
    yield said
    images: list[Part] = []
    for call in calls:
        if not outputs[call.call_id]:
            continue
        output = outputs[call.call_id].popleft()
        yield {"role": "tool", "tool_call_id": call.call_id, "content": output.text}
        if not isinstance(output.output, str):
            images += [part for part in output.output if isinstance(part, ImageUrl)]
    if images:
        yield {"role": "user", "content": _content((Text(_TOOL_IMAGES), *images))}


def _content(parts: tuple[Part, ...]) -> object:
    if all(isinstance(part, Text) for part in parts):
        return "".join(part.text for part in parts if isinstance(part, Text))
    return [_part(part) for part in parts]


def _part(part: Part) -> Body:
    match part:
        case Text(text):
            return {"type": "text", "text": text}
        case ImageUrl(url, detail):
            return {"type": "image_url", "image_url": {"url": url, "detail": detail or "auto"}}


def _tool(tool: FunctionTool) -> Body:
    function: Body = {
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters,
    }
    if tool.strict:
        function["strict"] = True
    return {"type": "function", "function": function}


def _choice(choice: str | NamedTool | None) -> object:
    if isinstance(choice, NamedTool):
        return {"type": "function", "function": {"name": choice.name}}
    return choice


def _format(request: ModelRequest) -> Body | None:
    if request.text_format is None:
        return None
    if isinstance(request.text_format, JsonSchema):
        wanted = request.text_format
        schema = {"name": wanted.name, "schema": wanted.schema, "strict": wanted.strict}
        return {"type": "json_schema", "json_schema": schema}
    return {"type": "json_object"}
