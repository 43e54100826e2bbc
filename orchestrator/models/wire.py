"""Owns reading of JSON that may be anything: wrong types read as absent, nothing raises."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from orchestrator.models.model import Usage

Json = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Event:
    """One object out of a stream; `name` is the framing's own event name, often empty."""

    data: Json
    name: str = ""


@dataclass(frozen=True, slots=True)
class Whole:
    """The whole answer in one object, from a server that does not stream."""

    data: Json


@dataclass(frozen=True, slots=True)
class Done:
    """The `[DONE]` mark."""


Frame = Event | Whole | Done


def text(source: object, key: str) -> str:
    value = source.get(key) if isinstance(source, Mapping) else None
    return value if isinstance(value, str) else ""


def number(source: object, key: str) -> int | None:
    value = source.get(key) if isinstance(source, Mapping) else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def mapping(source: object, key: str) -> Json:
    value = source.get(key) if isinstance(source, Mapping) else None
    return value if isinstance(value, Mapping) else {}


def mappings(source: object, key: str) -> Iterator[Json]:
    """The objects in a list; whatever else is in it is passed over."""
    value = source.get(key) if isinstance(source, Mapping) else None
    if isinstance(value, list):
        yield from (entry for entry in value if isinstance(entry, Mapping))


def arguments(source: object) -> str:
    """A call's arguments as JSON text, whether they were sent as text or as an object."""
    value = source.get("arguments") if isinstance(source, Mapping) else None
    if isinstance(value, Mapping):
        return json.dumps(value, ensure_ascii=False)
    return value if isinstance(value, str) else ""


def is_whole_object(arguments: str) -> bool:
    """Whether these arguments cannot have been cut short."""
    try:
        return isinstance(json.loads(arguments), dict)
    except ValueError:
        return False


def usage(source: object) -> Usage | None:
    """Usage in either protocol's words; None where the server did not count."""
    if not isinstance(source, Mapping):
        return None
    read = number(source, "input_tokens")
    read = number(source, "prompt_tokens") if read is None else read
    written = number(source, "output_tokens")
    written = number(source, "completion_tokens") if written is None else written
    if read is None and written is None:
        return None
    read, written = read or 0, written or 0
    inputs = mapping(source, "input_tokens_details") or mapping(source, "prompt_tokens_details")
    outputs = mapping(source, "output_tokens_details") or mapping(
        source, "completion_tokens_details"
    )
    return Usage(
        input_tokens=read,
        cached_tokens=number(inputs, "cached_tokens") or 0,
        output_tokens=written,
        reasoning_tokens=number(outputs, "reasoning_tokens") or 0,
        total_tokens=number(source, "total_tokens") or read + written,
        cache_write_tokens=number(inputs, "cache_write_tokens") or 0,
    )
