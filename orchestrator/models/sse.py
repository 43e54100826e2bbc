"""Owns the framing of server-sent events: bytes in, events out. Does no input or output."""

import re
from dataclasses import dataclass

MAX_EVENT_BYTES = 32 * 1024 * 1024
"""What one event may hold before the stream is given up as garbled."""

_LINE_END = re.compile(rb"\r\n|\n|\r")
_BOM = b"\xef\xbb\xbf"


class EventTooLarge(ValueError):
    """One event is larger than the limit."""


@dataclass(frozen=True, slots=True)
class ServerSentEvent:
    name: str
    data: str


class SseDecoder:
    """Decodes a stream that may be cut anywhere.

    Works on bytes, so that neither a multi-byte character nor a line end can be split; only CR,
    LF and CRLF end a line (U+2028 is text). A CR ends its line at once instead of waiting to see
    whether an LF follows, so that an event is never held back until the next one. Events without
    data are dropped, comments and unknown fields ignored.
    """

    def __init__(self, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self._max_event_bytes = max_event_bytes
        self._line: list[bytes] = []
        self._name = ""
        self._data: list[str] = []
        self._size = 0
        self._first_line = True
        self._after_cr = False

    def feed(self, chunk: bytes) -> list[ServerSentEvent]:
        """Decode what came; returns the events that it completed.

        Errors: `EventTooLarge`.
        """
        if self._after_cr and chunk.startswith(b"\n"):
            chunk = chunk[1:]
        elif not chunk:
            return []
        self._after_cr = chunk.endswith(b"\r")
        *whole, rest = _LINE_END.split(chunk)
        events = []
        for piece in whole:
            self._hold(piece)
            if (event := self._end_line()) is not None:
                events.append(event)
        self._hold(rest)
        return events

    def close(self) -> list[ServerSentEvent]:
        """The stream has ended: an event that only lacks its blank line still counts."""
        ended = [self._end_line(), self._dispatch()]
        return [event for event in ended if event is not None]

    def _hold(self, piece: bytes) -> None:
        if not piece:
            return
        self._size += len(piece)
        if self._size > self._max_event_bytes:
            raise EventTooLarge(f"an event is larger than {self._max_event_bytes} bytes")
        self._line.append(piece)

    def _end_line(self) -> ServerSentEvent | None:
        raw = b"".join(self._line)
        self._line.clear()
        if self._first_line:
            raw = raw.removeprefix(_BOM)
            self._first_line = False
        if not raw:
            return self._dispatch()
        field, _, value = raw.decode("utf-8", "replace").partition(":")
        value = value.removeprefix(" ")
        if field == "data":
            self._data.append(value)
        else:
            self._size -= len(raw)
            if field == "event":
                self._name = value
        return None

    def _dispatch(self) -> ServerSentEvent | None:
        event = ServerSentEvent(self._name, "\n".join(self._data))
        self._name = ""
        self._data = []
        self._size = 0
        return event if event.data.strip() else None
