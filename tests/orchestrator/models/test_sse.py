import pytest

from orchestrator.models.sse import EventTooLarge, ServerSentEvent, SseDecoder

TRANSCRIPT = (
    "\ufeff: comment\nevent: first\ndata: caf\u00e9 \U0001f600\n\n"
    "data: two\r\ndata: lines\r\n\r\n"
    "data:no space\r\rid: 7\nretry: 5\nunknown\ndata: a\u2028b\u0085c\n\n"
    "event: ping\ndata:\n\n"
    "data: last: one\n\n"
).encode()
EVENTS = [
    ServerSentEvent("first", "caf\u00e9 \U0001f600"),
    ServerSentEvent("", "two\nlines"),
    ServerSentEvent("", "no space"),
    ServerSentEvent("", "a\u2028b\u0085c"),
    ServerSentEvent("", "last: one"),
]


def decode(*chunks: bytes) -> list[ServerSentEvent]:
    decoder = SseDecoder()
    decoded = [event for chunk in chunks for event in decoder.feed(chunk)]
    return decoded + decoder.close()


@pytest.mark.parametrize("at", range(len(TRANSCRIPT) + 1))
def test_a_stream_cut_anywhere_reads_the_same(at):
    assert decode(TRANSCRIPT[:at], TRANSCRIPT[at:]) == EVENTS


def test_a_stream_of_single_bytes_reads_the_same():
    assert decode(*(bytes([byte]) for byte in TRANSCRIPT)) == EVENTS


@pytest.mark.parametrize("end", [b"\n", b"\r", b"\r\n"])
def test_an_event_is_not_held_back_until_the_next_one(end):
    assert SseDecoder().feed(b"data: now" + end + end) == [ServerSentEvent("", "now")]


def test_an_event_without_its_blank_line_counts_at_the_end():
    assert decode(b"data: one\n\ndata: two") == [
        ServerSentEvent("", "one"),
        ServerSentEvent("", "two"),
    ]


def test_a_very_large_event_in_many_chunks_arrives_whole():
    size = 8 * 1024 * 1024
    chunks = [b"data: ", *[b"x" * 1024] * (size // 1024), b"\n\n"]
    assert decode(*chunks) == [ServerSentEvent("", "x" * size)]


def test_an_event_over_the_limit_is_refused():
    decoder = SseDecoder(max_event_bytes=100)
    for _ in range(50):
        assert decoder.feed(b": ten bytes\n") == []
    with pytest.raises(EventTooLarge):
        for _ in range(50):
            decoder.feed(b"data: ten bytes\n")


def test_bytes_that_are_no_utf8_are_replaced():
    assert decode(b"data: a\xffb\n\n") == [ServerSentEvent("", "a\ufffdb")]
