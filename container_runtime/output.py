"""Owns how a stream is cut to its ends without splitting a character."""

from dataclasses import dataclass

from container_runtime.spool import Gap, StreamSpool

_CONTINUES = range(0x80, 0xC0)
_LONGEST = 4  # bytes of a UTF-8 character


@dataclass(frozen=True, slots=True)
class BoundedOutput:
    """The ends of a stream; all of it is in `head` when nothing was left out."""

    head: bytes
    omitted: int = 0
    tail: bytes = b""


def bounded_output(spool: StreamSpool, limit: int) -> BoundedOutput:
    """At most `limit` bytes of what was written so far: the first and the last half. Bytes that
    are not UTF-8 are cut anywhere. Raises `SpoolFailed`."""
    total = spool.total
    if total <= limit:
        head = _read(spool, 0, total)
        if len(head) == total:
            return BoundedOutput(head)
    half = limit // 2
    head = whole_end(_read(spool, 0, min(half, total)))
    tail = whole_start(_read_back(spool, max(len(head), total - (limit - half)), total))
    return BoundedOutput(head, total - len(head) - len(tail), tail)


def _read(spool: StreamSpool, offset: int, end: int) -> bytes:
    """What is kept from `offset` on, up to `end` or the first gap."""
    parts = []
    while offset < end:
        found = spool.read(offset, end - offset)
        if isinstance(found, Gap) or not found:
            break
        parts.append(found)
        offset += len(found)
    return b"".join(parts)


def _read_back(spool: StreamSpool, offset: int, end: int) -> bytes:
    """What is kept before `end`, from `offset` or the last gap on."""
    while offset < end:
        found = spool.read(offset, 1)
        if not isinstance(found, Gap):
            break
        offset = found.offset + found.length
    return _read(spool, offset, end)


def whole_end(data: bytes) -> bytes:
    """Without the character that its end cuts short."""
    for back in range(1, min(_LONGEST, len(data)) + 1):
        byte = data[-back]
        if byte in _CONTINUES:
            continue
        return data[:-back] if _length(byte) > back else data
    return data


def whole_start(data: bytes) -> bytes:
    """Without the rest of a character that begins before it."""
    for start in range(min(_LONGEST, len(data))):
        if data[start] not in _CONTINUES:
            return data[start:]
    return data if len(data) >= _LONGEST else b""


def _length(first: int) -> int:
    if first >= 0xF0:
        return 4
    if first >= 0xE0:
        return 3
    return 2 if first >= 0xC0 else 1
