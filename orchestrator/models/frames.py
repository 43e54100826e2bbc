"""Owns telling a streamed answer from a whole one, whatever its content type says.

Bytes in, frames out. Does no input or output.
"""

import json
from collections.abc import Iterator

from orchestrator.models.sse import EventTooLarge, ServerSentEvent, SseDecoder
from orchestrator.models.wire import Done, Event, Frame, Whole

MAX_WHOLE_BYTES = 64 * 1024 * 1024
"""What an answer that is not streamed may hold."""

_BLANK = b" \t\r\n"
_BOM = b"\xef\xbb\xbf"


class Garbled(ValueError):
    """The body is no JSON where JSON must be, or too large."""

    is_web_page = False


class WebPage(Garbled):
    is_web_page = True


class FrameReader:
    """Reads one body. Its first character decides: `{` is a whole answer, `<` a web page."""

    def __init__(self) -> None:
        self._start = b""
        self._whole: list[bytes] | None = None
        self._events: SseDecoder | None = None
        self._size = 0

    def feed(self, chunk: bytes) -> Iterator[Frame]:
        """Errors: `Garbled`."""
        if self._whole is None and self._events is None:
            self._start += chunk
            first = self._start.removeprefix(_BOM).lstrip(_BLANK)[:1]
            if not first or self._start == _BOM[: len(self._start)]:
                return
            if first == b"<":
                raise WebPage("it answered with a web page")
            if first in b"{[":
                self._whole = []
            else:
                self._events = SseDecoder()
            chunk, self._start = self._start, b""
        if self._events is not None:
            try:
                events = self._events.feed(chunk)
            except EventTooLarge as error:
                raise Garbled(str(error)) from error
            for event in events:
                yield _frame(event)
        elif self._whole is not None:
            self._size += len(chunk)
            if self._size > MAX_WHOLE_BYTES:
                raise Garbled(f"the answer is larger than {MAX_WHOLE_BYTES} bytes")
            self._whole.append(chunk)

    def close(self) -> Iterator[Frame]:
        """Errors: `Garbled`."""
        if self._events is not None:
            for event in self._events.close():
                yield _frame(event)
        elif self._whole is not None:
            yield Whole(
                _object(b"".join(self._whole).removeprefix(_BOM).decode("utf-8", "replace"))
            )


def _frame(event: ServerSentEvent) -> Frame:
    if event.data.startswith("[DONE]"):
        return Done()
    return Event(_object(event.data), event.name)


def _object(text: str) -> dict[str, object]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise Garbled(f"what came is no JSON ({error}): {text[:80]!r}") from error
    if isinstance(value, list) and value and isinstance(value[0], dict) and "error" in value[0]:
        value = value[0]
    if not isinstance(value, dict):
        raise Garbled(f"what came is no JSON object: {text[:80]!r}")
    return value
