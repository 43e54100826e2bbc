"""Owns what is kept of a command's output: its ends as readable text, and how much lies between.

Knows neither executions nor models.
"""

import codecs
import re
from collections import deque
from dataclasses import dataclass

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_READABLE: dict[int, str] = {
    **{code: chr(0x2400 + code) for code in range(0x20) if chr(code) not in "\t\n"},
    0x7F: "\u2421",
    **dict.fromkeys([*range(0x80, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A)], "\ufffd"),
}


def readable(text: str) -> str:
    """`text` with control characters made visible, one character for one (ESC becomes ␛).

    Newlines and tabs stay. Nothing in the result can move a terminal's cursor or turn the
    direction of writing around.
    """
    return text.translate(_READABLE) if _CONTROL.search(text) else text


@dataclass(frozen=True, slots=True)
class LeftOut:
    """What lies between the kept ends: characters that were read, and bytes that never came."""

    characters: int = 0
    gap_bytes: int = 0

    def __bool__(self) -> bool:
        return bool(self.characters or self.gap_bytes)

    def marker(self) -> str:
        """The line that stands for it."""
        parts = []
        if self.characters:
            parts.append(f"{self.characters} character{'s' * (self.characters != 1)}")
        if self.gap_bytes:
            parts.append(f"{self.gap_bytes} byte{'s' * (self.gap_bytes != 1)}")
        return f"\n[... {' and '.join(parts)} left out ...]\n"


class BoundedText:
    """The first and the last characters of a stream of bytes, in bounded memory.

    Bytes are decoded as UTF-8 across chunks; what is none becomes U+FFFD. Every character is
    counted, so that what is left out is known exactly; what the spool had lost is counted in
    bytes. Holds at most about `3 * limit_chars` characters and one chunk.
    """

    def __init__(self, limit_chars: int) -> None:
        self._limit = limit_chars
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._head: list[str] = []
        self._head_room = limit_chars
        self._tail: deque[str] = deque()
        self._tail_chars = 0
        self._dropped = 0
        self._gap_bytes = 0

    @property
    def characters(self) -> int:
        """How many characters were read, those left out included."""
        return self._limit - self._head_room + self._dropped + self._tail_chars

    @property
    def gap_bytes(self) -> int:
        """How many bytes are missing."""
        return self._gap_bytes

    def feed(self, data: bytes, *, final: bool = False) -> str:
        """Takes more bytes; returns the characters they completed, as they are.

        `final` says that nothing follows: an incomplete character becomes U+FFFD.
        """
        text = self._decoder.decode(data, final)
        self._append(text)
        return text

    def skip(self, gap_bytes: int) -> str:
        """Notes that bytes are missing here; returns what the character cut by it became.

        What follows is never joined to what came before: the head ends here.
        """
        text = self._decoder.decode(b"", True)
        self._decoder.reset()
        self._append(text)
        self._gap_bytes += gap_bytes
        self._dropped += self._tail_chars
        self._tail.clear()
        self._tail_chars = 0
        return text

    def left_out(self, limit_chars: int | None = None) -> LeftOut:
        """What `render` with the same limit leaves out."""
        return self._cut(limit_chars)[1]

    def render(self, limit_chars: int | None = None) -> str:
        """The kept text, readable: all of it, or head, marker and tail.

        `limit_chars` is at most the constructor's, and that by default; the marker comes on top.
        """
        head, left_out, tail = self._cut(limit_chars)
        return readable(head + (left_out.marker() if left_out else "") + tail)

    def _append(self, text: str) -> None:
        if self._head_room and not self._gap_bytes:
            taken = text[: self._head_room]
            self._head.append(taken)
            self._head_room -= len(taken)
            text = text[len(taken) :]
            if len(self._head) > 1024:
                self._head = ["".join(self._head)]
        if text:
            self._append_tail(text)

    def _append_tail(self, text: str) -> None:
        if len(text) > self._limit:
            self._dropped += len(text) - self._limit
            text = text[len(text) - self._limit :]
        self._tail.append(text)
        self._tail_chars += len(text)
        while self._tail_chars - len(self._tail[0]) >= self._limit:
            gone = len(self._tail.popleft())
            self._tail_chars -= gone
            self._dropped += gone
        if len(self._tail) > 1024:
            self._tail = deque(["".join(self._tail)])

    def _cut(self, limit_chars: int | None) -> tuple[str, LeftOut, str]:
        limit = self._limit if limit_chars is None else min(limit_chars, self._limit)
        head, tail = "".join(self._head), "".join(self._tail)
        if not self._dropped and not self._gap_bytes:
            whole = head + tail
            if len(whole) <= limit:
                return whole, LeftOut(), ""
            head = tail = whole
        if self._gap_bytes and not self._dropped and len(head) + len(tail) <= limit:
            return head, LeftOut(gap_bytes=self._gap_bytes), tail
        front = head[: limit // 2]
        rest = limit - len(front)
        back = tail[len(tail) - rest :] if 0 < rest < len(tail) else tail if rest else ""
        if self._gap_bytes and len(back) < rest:
            front = head[: limit - len(back)]
        left = self.characters - len(front) - len(back)
        return front, LeftOut(left, self._gap_bytes), back


class BoundedOutput:
    """Standard output and error of one command within one limit.

    Each may fill what the other leaves, but a quarter of the limit belongs to standard error and
    the rest to standard output: neither can push the other out.
    """

    def __init__(self, limit_chars: int) -> None:
        self.stdout = BoundedText(limit_chars)
        self.stderr = BoundedText(limit_chars)
        self._limit = limit_chars

    def render(self) -> tuple[str, str]:
        """Standard output and standard error, together within the limit, markers on top."""
        reserved = max(1, self._limit // 4)
        for_stderr = max(reserved, self._limit - self.stdout.characters)
        for_stdout = self._limit - min(self.stderr.characters, for_stderr)
        return self.stdout.render(for_stdout), self.stderr.render(for_stderr)
