"""Owns the OpenAI Responses protocol: how a request is written, and where answers are read."""

from collections.abc import Iterator, Mapping

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
    Text,
)
from orchestrator.models.responses_answer import ResponsesAnswer
from orchestrator.models.server_model import Body, refuses, without

# Fields that we add of ourselves, and so may leave out again, with the words of a refusal.
_OPTIONAL = {
    "include": r"[`'\"]include[`'\"]|encrypted.content",
    "store": r"[`'\"]store[`'\"]",
}


class ResponsesProtocol:
    """Speaks `POST /responses`. Nothing is stored at the server: reasoning comes back encrypted.

    A server that refuses `store` or `include` is asked again without it, and from then on too.
    """

    path = "responses"

    def __init__(self) -> None:
        self._refused: set[str] = set()

    def body(self, request: ModelRequest) -> Body:
        body: Body = {
            "model": request.model,
            "input": [entry for item in request.items for entry in _item(item)],
            "stream": True,
            "store": False,
            "include": ["reasoning.encrypted_content"],
            "instructions": request.instructions or None,
            "tools": [_tool(tool) for tool in request.tools] or None,
            "tool_choice": _choice(request.tool_choice),
            "parallel_tool_calls": request.parallel_tool_calls,
            "reasoning": _given(effort=request.reasoning_effort, summary=request.reasoning_summary),
            "text": _given(format=_format(request), verbosity=request.verbosity),
            "max_output_tokens": request.max_output_tokens,
            "temperature": request.temperature,
            "top_p": request.top_p,
            "service_tier": request.service_tier,
            "prompt_cache_key": request.prompt_cache_key,
        }
        return {
            key: value
            for key, value in body.items()
            if value is not None and key not in self._refused
        }

    def answer(self, request: ModelRequest, faults: Faults) -> ResponsesAnswer:
        return ResponsesAnswer(request, faults)

    def adapted(self, body: Body, refusal: ModelRequestRefused) -> Body | None:
        if refusal.metadata.get("server_code") == "invalid_encrypted_content":
            return _without_reasoning(body)
        for field, words in _OPTIONAL.items():
            if field in body and refuses(refusal, field, words):
                self._refused.add(field)
                return without(body, field)
        return None


def _without_reasoning(body: Body) -> Body | None:
    """Another model's thoughts cannot be read here; the conversation does without them."""
    items = body["input"]
    assert isinstance(items, list)
    kept = [item for item in items if item["type"] != "reasoning"]
    return None if len(kept) == len(items) else body | {"input": kept}


def _item(item: Item) -> Iterator[Body]:
    match item:
        case Message(role, content):
            yield {
                "type": "message",
                "role": role,
                "content": [_part(part, role == "assistant") for part in content],
            }
        case FunctionCall(call_id, name, arguments):
            yield {
                "type": "function_call",
                "call_id": call_id,
                "name": name,
                "arguments": arguments,
            }
        case FunctionCallOutput(call_id, output):
            sent = output if isinstance(output, str) else [_part(part, False) for part in output]
            yield {"type": "function_call_output", "call_id": call_id, "output": sent}
        case _:
            # Only what carries the thought itself: the server keeps nothing, and refuses a
            # bare id as unknown.
            if item.encrypted_content or item.content:
                yield (
                    _given(
                        type="reasoning",
                        id=item.id or None,
                        summary=[{"type": "summary_text", "text": text} for text in item.summary],
                        content=[{"type": "reasoning_text", "text": text} for text in item.content]
                        or None,
                        encrypted_content=item.encrypted_content,
                    )
                    or {}
                )


def _part(part: Part, written_by_model: bool) -> Body:
    match part:
        case Text(text):
            return {"type": "output_text" if written_by_model else "input_text", "text": text}
        case ImageUrl(url, detail):
            return {"type": "input_image", "image_url": url, "detail": detail or "auto"}


def _tool(tool: FunctionTool) -> Body:
    return {
        "type": "function",
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters,
        "strict": tool.strict,
    }


def _choice(choice: str | NamedTool | None) -> object:
    if isinstance(choice, NamedTool):
        return {"type": "function", "name": choice.name}
    return choice


def _format(request: ModelRequest) -> Mapping[str, object] | None:
    if request.text_format is None:
        return None
    if isinstance(request.text_format, JsonSchema):
        wanted = request.text_format
        return {
            "type": "json_schema",
            "name": wanted.name,
            "schema": wanted.schema,
            "strict": wanted.strict,
        }
    return {"type": "json_object"}


def _given(**fields: object) -> Body | None:
    return {key: value for key, value in fields.items() if value is not None} or None
