"""Owns how records are written as JSON and times as numbers."""

from datetime import UTC, datetime, timedelta
from typing import Generic, TypeVar

from pydantic import TypeAdapter

from orchestrator.records import (
    Artifact,
    Environment,
    EventKind,
    Item,
    Payload,
    SavedAgent,
    SessionError,
    StoredFile,
    Turn,
    Usage,
)

T = TypeVar("T")

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class Codec(Generic[T]):
    """Writes values of one type as JSON and reads them again."""

    def __init__(self, kind: type[T]) -> None:
        self._adapter = TypeAdapter(kind)

    def write(self, value: T) -> str:
        return self._adapter.dump_json(value).decode()

    def read(self, text: str) -> T:
        return self._adapter.validate_json(text)


TURN = Codec(Turn)
ITEM = Codec(Item)
ENVIRONMENT = Codec(Environment)
ARTIFACT = Codec(Artifact)
FILE = Codec(StoredFile)
SAVED_AGENT = Codec(SavedAgent)
USAGE = Codec(Usage)
SESSION_ERROR = Codec(SessionError)

_PAYLOADS: dict[str, Codec[Turn] | Codec[Item] | Codec[Environment] | Codec[Artifact]] = {
    "turn": TURN,
    "item": ITEM,
    "environment": ENVIRONMENT,
    "artifact": ARTIFACT,
}


def write_payload(kind: EventKind, payload: Payload) -> str:
    """JSON of a durable event's payload."""
    codec = _payload_codec(kind)
    return codec.write(payload)  # type: ignore[arg-type]


def read_payload(kind: EventKind, text: str) -> Payload:
    """The payload of a durable event of this kind."""
    return _payload_codec(kind).read(text)


def _payload_codec(
    kind: EventKind,
) -> Codec[Turn] | Codec[Item] | Codec[Environment] | Codec[Artifact] | Codec[SessionError]:
    return _PAYLOADS.get(kind.partition("_")[0], SESSION_ERROR)


def to_micros(time: datetime) -> int:
    return (time - _EPOCH) // _MICROSECOND


def from_micros(micros: int) -> datetime:
    return _EPOCH + micros * _MICROSECOND
