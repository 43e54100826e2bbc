"""The frames: whole whatever the cuts, and malformed ones refused with one kind of error."""

import random

import pytest

from container_runtime.agent import wire

ALL = wire.FROM_HOST | wire.FROM_SUPERVISOR


def feed(decoder: wire.Decoder, data: bytes, sizes: list[int]) -> list[wire.Frame]:
    frames: list[wire.Frame] = []
    at = 0
    while at < len(data):
        space = decoder.space()
        size = min(sizes[at % len(sizes)], len(space), len(data) - at)
        space[:size] = data[at : at + size]
        frames += decoder.received(size)
        at += size
    return frames


@pytest.mark.parametrize("sizes", [[1], [3, 7], [19, 20, 21], [65_536], [1_000_000]])
def test_frames_survive_every_cut(sizes: list[int]) -> None:
    sent = [
        (wire.OUTPUT, 2, 7, 2**40, b"x" * wire.MAX_OUTPUT),
        (wire.HEARTBEAT, 0, 0, 0, b""),
        (wire.OUTPUT, 1, 2**32 - 1, 5, b"y"),
    ]
    data = b"".join(wire.frame(k, c, f, o, p) for k, f, c, o, p in sent)
    assert feed(wire.Decoder(ALL), data, sizes) == sent


def test_long_control_payload_comes_whole() -> None:
    data = wire.control(wire.START, 9, b"a" * 900_000, [b"b", 5])
    ((kind, _, channel, _, payload),) = feed(wire.Decoder(ALL), data, [50_000])
    assert (kind, channel) == (wire.START, 9)
    assert wire.unpack(payload) == [b"a" * 900_000, [b"b", 5]]
    with pytest.raises(wire.ProtocolError):
        wire.control(wire.START, 9, b"a" * wire.MAX_CONTROL)


@pytest.mark.parametrize(
    "data",
    [
        wire.header(wire.OUTPUT, wire.MAX_OUTPUT + 1),
        wire.header(wire.ENDED, wire.MAX_PAYLOAD + 1),
        wire.header(99, 0),
        wire.header(wire.START, 0),
        wire.HEADER.pack(0, wire.OUTPUT, 0, 1, 0, 0),
        wire.frame(wire.MORE, 1),
        wire.frame(wire.MORE, 1, payload=b"x") + wire.frame(wire.ENDED, 2),
        wire.frame(wire.MORE, 1, payload=b"x") + wire.frame(wire.OUTPUT, 1, 1, 0, b"x"),
        wire.frame(wire.MORE, 1, payload=b"x" * wire.MAX_PAYLOAD) * 17,
    ],
)
def test_malformed_frames_are_refused(data: bytes) -> None:
    with pytest.raises(wire.ProtocolError):
        feed(wire.Decoder(wire.FROM_SUPERVISOR), data, [10_000])


def test_values_come_back_as_they_were() -> None:
    values: list[wire.Value] = [0, -1, 2**63 - 1, b"", b"\0\xff", [b"a", [1, [2]]]]
    assert wire.unpack(wire.pack(values)) == values


def test_malformed_values_raise_nothing_else() -> None:
    source = random.Random(11)
    whole = wire.pack([1, b"abc", [2, b"d", [b"e"]]])
    for _ in range(20_000):
        broken = bytearray(whole)
        for _ in range(source.randrange(1, 4)):
            broken[source.randrange(len(broken))] = source.randrange(256)
        try:
            wire.unpack(bytes(broken[: source.randrange(len(broken) + 1)]))
        except wire.ProtocolError:
            continue


def test_nesting_is_bounded() -> None:
    deep = b"".join(b"l\x01\0\0\0" for _ in range(100_000))
    with pytest.raises(wire.ProtocolError):
        wire.unpack(deep)


def test_start_is_taken_apart_as_it_was_made() -> None:
    payload = wire.start(
        3, (24, 80), -1, 2000, (-1,) * 6, b"id", b"/w", (b"a", b""), (b"A=1", b"B=")
    )
    head, exec_id, cwd, arguments, variables = wire.split_start(payload)
    assert head[:5] == (3, 24, 80, -1, 2000)
    assert (exec_id, cwd, arguments, variables) == (b"id", b"/w", [b"a", b""], [b"A=1", b"B="])
    for cut in range(len(payload)):
        try:
            wire.split_start(payload[:cut])
        except wire.ProtocolError:
            continue
