"""The frames between supervisor and host: sans-IO, shared by both sides, standard library only.

Protocol, version 1
===================

One unix stream connection, dialled by the supervisor. Every frame is a 20-byte header, little
endian, and a payload of at most 65,536 bytes (OUTPUT: 262,144):

    u32 payload length | u8 kind | u8 flag | u16 zero | u32 channel | u64 offset | payload

Data payloads are raw bytes. Control payloads are packed values (`pack`) unless said otherwise
below: a list of i64 (`i`), byte strings (`b`, u32 length) and lists (`l`, u32 count), nested at
most four deep. A control payload that does not fit one frame is sent as MORE frames of the same
channel followed by the frame itself, 1 MiB in all. Anything malformed, unknown or beyond a bound
ends the connection, never the process; the supervisor dials again.

Handshake. The supervisor sends HELLO [version, boot id], one LISTED per execution that it holds,
and LISTED_ALL. The host answers each LISTED with RESUME or FORGET and then sends WELCOME
[version]. Nothing else is sent before. The boot id is made anew whenever the supervisor starts:
the same one means a reconnect with everything kept, another one means all executions are lost.

Executions. A channel is a number that the host chooses, never used twice in a boot. START carries
the specification; STARTED comes unless OUTPUT or ENDED tells as much before. A START of a known
channel with the same id is answered again (STARTED or ENDED), a known id on another channel is
REFUSED. Output comes as OUTPUT (flag = stream, offset = first byte's position in the stream). The
supervisor holds what is not acknowledged, at most WINDOW bytes per stream, and then stops reading
the pipe. ACK (flag, offset) says that all before `offset` is safe. ENDED comes after the last
OUTPUT and, after a reconnect, again, until RECORDED; then the supervisor forgets the execution.
Stdin goes as STDIN with the same offsets: bytes before what was received are skipped, a gap ends
the connection, at most WINDOW bytes beyond the offset of the last STDIN_TAKEN (written into the
pipe). STDIN_END carries the total as offset. STDIN_CLOSED says that the command no longer reads;
later bytes are dropped.

Files. A request number is the channel, in a space of its own and for one connection only: both
sides drop unfinished requests when it ends. FILE_OPEN starts a verb; FILE_DATA flows from the
supervisor (reads) or from the host (writes), at most WINDOW bytes beyond the offset of the last
FILE_ACK; FILE_END says that the writer is done; FILE_CANCEL ends the request without effect where
the verb allows; FILE_RESULT or FILE_ERROR [errno, message] is the last frame of each request.

Liveness. Each side sends HEARTBEAT after HEARTBEAT_SECONDS without another frame and drops a
connection on which nothing came for SILENCE_SECONDS.
"""

from __future__ import annotations

from struct import Struct, error

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import TypeAlias

    Value: TypeAlias = int | bytes | Sequence["Value"]
    Frame: TypeAlias = tuple[int, int, int, int, bytes]
else:
    Value = Frame = object  # for annotations that the host's side evaluates

VERSION = 1
HEADER = Struct("<IBBHIQ")
HEADER_BYTES = HEADER.size
MAX_PAYLOAD = 65_536
MAX_OUTPUT = 262_144
MAX_CONTROL = 1_048_576
WINDOW = 262_144
HEARTBEAT_SECONDS = 5.0
SILENCE_SECONDS = 20.0

MAX_EXECUTIONS = 1024
MAX_ID = 128
MAX_ARGUMENTS = 4096
MAX_ARGUMENT = 131_071
MAX_SCRIPT = 900_000
MAX_GRACE_MS = 60_000
MAX_PATH = 4095
MAX_FILE_REQUESTS = 64
MAX_LISTING = 1000

# Both ways.
HEARTBEAT, MORE = 1, 2
# Supervisor to host.
HELLO, LISTED, LISTED_ALL = 10, 11, 12
STARTED, REFUSED, OUTPUT, ENDED, STDIN_TAKEN, STDIN_CLOSED = 13, 14, 15, 16, 17, 18
FILE_RESULT, FILE_ERROR = 30, 31
# Host to supervisor.
WELCOME, RESUME, FORGET = 50, 51, 52
START, STDIN, STDIN_END, SIGNAL, CANCEL, RESIZE, ACK, RECORDED = 53, 54, 55, 56, 57, 58, 59, 60
FILE_OPEN, FILE_CANCEL = 70, 71
# Both ways, by the direction of the request.
FILE_DATA, FILE_ACK, FILE_END = 90, 91, 92

FROM_SUPERVISOR = frozenset(
    (HEARTBEAT, MORE, HELLO, LISTED, LISTED_ALL, STARTED, REFUSED, OUTPUT, ENDED, STDIN_TAKEN)
    + (STDIN_CLOSED, FILE_RESULT, FILE_ERROR, FILE_DATA, FILE_ACK, FILE_END)
)
FROM_HOST = frozenset(
    (HEARTBEAT, MORE, WELCOME, RESUME, FORGET, START, STDIN, STDIN_END, SIGNAL, CANCEL, RESIZE)
    + (ACK, RECORDED, FILE_OPEN, FILE_CANCEL, FILE_DATA, FILE_ACK, FILE_END)
)

# START and ENDED, the two frames of every command, are packed tightly:
#   START: flags, rows, columns, timeout and grace in ms, six limits (-1: none), number of
#     arguments, of variables; then identifier, working directory, arguments (or the script) and
#     NAME=value variables, joined by NUL bytes, which none of them holds.
#   ENDED: ending, code, signal (-1: none), stage, errno, stdout and stderr bytes, whether a pipe
#     is held, duration and CPU time in us, largest memory in bytes; then the message.
START_HEAD = Struct("<BHHqi6qHH")
ENDED_HEAD = Struct("<BhhBHQQBQQQ")

STDOUT, STDERR = 1, 2

# Endings, in ENDED.
EXITED, SIGNALLED, TIMED_OUT, CANCELLED, OUT_OF_MEMORY, START_FAILED = 1, 2, 3, 4, 5, 6
# Stages of a failed start.
STAGE_SPEC, STAGE_PIPES, STAGE_PTY, STAGE_SHELL, STAGE_CWD, STAGE_EXEC = 1, 2, 3, 4, 5, 6
# States, in LISTED.
STARTING, RUNNING, OVER = 1, 2, 3
# File verbs, in FILE_OPEN.
STAT, LIST, READ, WRITE, MKDIR, REMOVE, MOVE = 1, 2, 3, 4, 5, 6, 7
# File kinds.
KIND_FILE, KIND_DIRECTORY, KIND_SYMLINK, KIND_OTHER = 1, 2, 3, 4


class ProtocolError(Exception):
    """The peer sent what the protocol does not allow; the connection is to be dropped."""


def header(kind: int, size: int, channel: int = 0, flag: int = 0, offset: int = 0) -> bytes:
    """A frame's header alone, so that a large payload needs no copy."""
    return HEADER.pack(size, kind, flag, 0, channel, offset)


def frame(
    kind: int, channel: int = 0, flag: int = 0, offset: int = 0, payload: bytes = b""
) -> bytes:
    """A whole frame; the payload fits."""
    return HEADER.pack(len(payload), kind, flag, 0, channel, offset) + payload


def control(kind: int, channel: int, *values: Value) -> bytes:
    """A control frame with packed values."""
    return controls(kind, channel, pack(values))


_LENGTH = Struct("<BI")
_NUMBER = Struct("<Bq")


def pack(values: Sequence[Value]) -> bytes:
    """Packs a list of values."""
    parts: list[bytes] = []
    _pack_list(values, parts)
    return b"".join(parts)


def _pack_list(values: Sequence[Value], parts: list[bytes]) -> None:
    parts.append(_LENGTH.pack(0x6C, len(values)))
    for value in values:
        if isinstance(value, int):
            parts.append(_NUMBER.pack(0x69, value))
        elif isinstance(value, bytes):
            parts.append(_LENGTH.pack(0x62, len(value)))
            parts.append(value)
        else:
            _pack_list(value, parts)


def unpack(payload: bytes) -> list[Value]:
    """Unpacks a list of values, ProtocolError when it is anything else."""
    try:
        value, end = _unpack(payload, 0, 4)
    except (error, IndexError, RecursionError) as problem:
        raise ProtocolError(f"malformed values: {problem}") from None
    if end != len(payload) or not isinstance(value, list):
        raise ProtocolError("malformed values")
    return value


def _unpack(payload: bytes, at: int, depth: int) -> tuple[Value, int]:
    tag = payload[at]
    if tag == 0x69:
        number: int = _NUMBER.unpack_from(payload, at)[1]
        return number, at + 9
    size: int = _LENGTH.unpack_from(payload, at)[1]
    at += 5
    if tag == 0x62:
        if at + size > len(payload):
            raise ProtocolError("a byte string leaves its frame")
        return payload[at : at + size], at + size
    if tag != 0x6C or depth == 0 or size > len(payload) - at:
        raise ProtocolError("malformed values")
    items: list[Value] = []
    for _ in range(size):
        item, at = _unpack(payload, at, depth - 1)
        items.append(item)
    return items, at


def number(value: Value, low: int = 0, high: int = 2**62) -> int:
    """An integer within bounds, ProtocolError otherwise."""
    if not isinstance(value, int) or not low <= value <= high:
        raise ProtocolError("a number was expected")
    return value


def text(value: Value, longest: int = MAX_CONTROL) -> bytes:
    """A byte string of bounded length, ProtocolError otherwise."""
    if not isinstance(value, bytes) or len(value) > longest:
        raise ProtocolError("a byte string was expected")
    return value


def texts(value: Value, most: int, longest: int) -> list[bytes]:
    """A bounded list of bounded byte strings, ProtocolError otherwise."""
    if not isinstance(value, list) or len(value) > most:
        raise ProtocolError("a list was expected")
    return [text(item, longest) for item in value]


def start(
    flags: int,
    size: tuple[int, int],
    timeout_ms: int,
    grace_ms: int,
    limits: Sequence[int],
    exec_id: bytes,
    cwd: bytes,
    arguments: Sequence[bytes],
    variables: Sequence[bytes],
) -> bytes:
    """START's payload."""
    return START_HEAD.pack(
        flags, *size, timeout_ms, grace_ms, *limits, len(arguments), len(variables)
    ) + b"\0".join((exec_id, cwd, *arguments, *variables))


def split_start(payload: bytes) -> tuple[tuple[int, ...], bytes, bytes, list[bytes], list[bytes]]:
    """START's payload taken apart: head, identifier, working directory, arguments, variables."""
    if len(payload) < START_HEAD.size:
        raise ProtocolError("malformed start")
    head: tuple[int, ...] = START_HEAD.unpack_from(payload)
    items = payload[START_HEAD.size :].split(b"\0")
    arguments, variables = head[-2:]
    if not arguments or len(items) != 2 + arguments + variables:
        raise ProtocolError("malformed start")
    return head, items[0], items[1], items[2 : 2 + arguments], items[2 + arguments :]


def controls(kind: int, channel: int, payload: bytes) -> bytes:
    """A control frame, in several frames when it is long."""
    if len(payload) <= MAX_PAYLOAD:
        return frame(kind, channel, payload=payload)
    if len(payload) > MAX_CONTROL:
        raise ProtocolError(f"control payload of {len(payload)} bytes")
    last = (len(payload) - 1) // MAX_PAYLOAD * MAX_PAYLOAD
    parts = [
        frame(MORE, channel, payload=payload[at : at + MAX_PAYLOAD])
        for at in range(0, last, MAX_PAYLOAD)
    ]
    parts.append(frame(kind, channel, payload=payload[last:]))
    return b"".join(parts)


def fields(payload: bytes, count: int) -> list[Value]:
    """A list of exactly `count` values, ProtocolError otherwise."""
    values = unpack(payload)
    if len(values) != count:
        raise ProtocolError(f"{len(values)} values instead of {count}")
    return values


class Decoder:
    """Cuts received bytes into frames. Bounded: one buffer and one control payload.

    Receive into `space()`, then say how much came: `received(n)` gives the whole frames as
    (kind, flag, channel, offset, payload), MORE frames already joined.
    """

    def __init__(self, allowed: frozenset[int], size: int = 2 * (MAX_PAYLOAD + HEADER_BYTES)):
        self._allowed = allowed
        longest = MAX_OUTPUT if OUTPUT in allowed else MAX_PAYLOAD
        self._buffer = bytearray(max(size, longest + HEADER_BYTES))
        self._view = memoryview(self._buffer)
        self._filled = 0
        self._more = bytearray()
        self._more_channel = 0

    def space(self) -> memoryview:
        """Where the next bytes go; never empty."""
        return self._view[self._filled :]

    def received(self, count: int) -> list[Frame]:
        """The frames that are whole now. ProtocolError on malformed ones."""
        frames: list[Frame] = []
        view = self._view
        unpack_from = HEADER.unpack_from
        at, end = 0, self._filled + count
        while end - at >= HEADER_BYTES:
            size, kind, flag, zero, channel, offset = unpack_from(view, at)
            most = MAX_OUTPUT if kind == OUTPUT else MAX_PAYLOAD
            if size > most or zero or kind not in self._allowed:
                raise ProtocolError(f"malformed frame of kind {kind}")
            start = at + HEADER_BYTES
            if end - start < size:
                break
            at = start + size
            payload = bytes(view[start:at]) if size else b""
            if kind == MORE:
                self._collect(channel, payload)
            else:
                if self._more:
                    payload = self._joined(kind, channel, payload)
                frames.append((kind, flag, channel, offset, payload))
        self._filled = end - at
        if at and self._filled:
            view[: self._filled] = bytes(view[at:end])
        return frames

    def _collect(self, channel: int, payload: bytes) -> None:
        if self._more and channel != self._more_channel:
            raise ProtocolError("control payloads are interleaved")
        self._more_channel = channel
        self._more += payload
        if not payload or len(self._more) > MAX_CONTROL:
            raise ProtocolError("control payload out of bounds")

    def _joined(self, kind: int, channel: int, payload: bytes) -> bytes:
        if channel != self._more_channel or kind in (OUTPUT, STDIN, FILE_DATA):
            raise ProtocolError("control payload broken off")
        whole = bytes(self._more) + payload
        self._more.clear()
        if len(whole) > MAX_CONTROL:
            raise ProtocolError("control payload out of bounds")
        return whole
