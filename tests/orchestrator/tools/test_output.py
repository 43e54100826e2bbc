import random
import re
import tracemalloc

import pytest

from orchestrator.tools.output import BoundedOutput, BoundedText, readable

MARKER = re.compile(r"\n\[\.\.\. (\d+) characters? left out \.\.\.\]\n")


def feed_in_pieces(text: BoundedText, data: bytes, size: int) -> None:
    for start in range(0, len(data), size):
        text.feed(data[start : start + size])
    text.feed(b"", final=True)


def test_short_text_is_kept_whole():
    text = BoundedText(10)
    text.feed(b"0123456789", final=True)
    assert text.render() == "0123456789"
    assert not text.left_out()


@pytest.mark.parametrize("size", [1, 7, 4096, 10**7])
def test_a_long_text_keeps_both_ends_and_counts_the_rest(size):
    data = "".join(f"{n}\n" for n in range(1, 100_001)).encode()
    text = BoundedText(1000)
    feed_in_pieces(text, data, size)
    head, count, tail = MARKER.split(text.render())
    assert len(head) + len(tail) == 1000
    assert int(count) == len(data) - 1000
    assert data.decode().startswith(head) and data.decode().endswith(tail)


def test_one_character_over_the_limit_is_counted_in_the_singular():
    text = BoundedText(4)
    text.feed(b"abcde", final=True)
    assert text.render() == "ab\n[... 1 character left out ...]\nde"


@pytest.mark.parametrize("size", [1, 2, 1000, 65_537])
def test_characters_are_not_split_at_the_borders_of_chunks(size):
    text = BoundedText(1000)
    feed_in_pieces(text, ("☕" * 100_000).encode(), size)
    assert MARKER.split(text.render()) == ["☕" * 500, "99000", "☕" * 500]


@pytest.mark.parametrize("seed", range(5))
def test_random_bytes_are_counted_as_they_decode(seed):
    data = random.Random(seed).randbytes(50_000)
    text = BoundedText(600)
    feed_in_pieces(text, data, 997)
    whole = data.decode(errors="replace")
    head, count, tail = MARKER.split(text.render())
    assert head == readable(whole[:300]) and tail == readable(whole[-300:])
    assert int(count) == len(whole) - 600


def test_control_sequences_are_readable():
    text = BoundedText(100)
    text.feed(b"\x1b[31mred\x1b[0m\r\n\tbell\x07 nul\x00 del\x7f \xc2\x9b", final=True)
    assert text.render() == "␛[31mred␛[0m␍\n\tbell␇ nul␀ del␡ \ufffd"


def test_text_cannot_be_turned_around():
    assert readable("a\u202eb") == "a\ufffdb"


def test_a_gap_is_counted_in_bytes_and_ends_the_head():
    text = BoundedText(100)
    text.feed(b"before \xe2\x98")
    text.skip(12_345)
    text.feed(b"after", final=True)
    assert text.render() == "before \ufffd\n[... 12345 bytes left out ...]\nafter"


def test_a_gap_in_a_long_text_is_counted_beside_the_characters():
    text = BoundedText(10)
    text.feed(b"x" * 100)
    text.skip(1)
    text.feed(b"y" * 100, final=True)
    assert text.render() == "xxxxx\n[... 190 characters and 1 byte left out ...]\nyyyyy"


def test_text_before_the_gap_fills_what_the_text_after_it_leaves():
    text = BoundedText(10)
    text.feed(b"x" * 100)
    text.skip(7)
    text.feed(b"yy", final=True)
    assert text.render() == "xxxxxxxx\n[... 92 characters and 7 bytes left out ...]\nyy"


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_tiny_limits_hold(limit):
    text = BoundedText(limit)
    text.feed(b"abcdefgh", final=True)
    assert len(MARKER.sub("", text.render())) == limit


def test_a_smaller_limit_can_be_asked_for_later():
    text = BoundedText(100)
    text.feed(bytes(range(48, 98)), final=True)
    assert text.render(4) == "01\n[... 46 characters left out ...]\n`a"


def test_memory_stays_bounded():
    text = BoundedText(10_000)
    chunk = b"y\n" * 32_768
    tracemalloc.start()
    try:
        for _ in range(200):
            text.feed(chunk)
        for _ in range(50_000):
            text.feed(b"z")
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()
    assert text.characters == 200 * 65_536 + 50_000


def test_standard_error_survives_a_flood_of_output():
    output = BoundedOutput(1000)
    output.stdout.feed(b"o" * 50_000, final=True)
    output.stderr.feed(b"e" * 50_000, final=True)
    stdout, stderr = output.render()
    assert len(MARKER.sub("", stdout)) == 750
    assert len(MARKER.sub("", stderr)) == 250


def test_output_may_use_what_standard_error_leaves():
    output = BoundedOutput(1000)
    output.stdout.feed(b"o" * 5_000, final=True)
    output.stderr.feed(b"failed", final=True)
    stdout, stderr = output.render()
    assert stderr == "failed"
    assert len(MARKER.sub("", stdout)) == 994


def test_standard_error_may_use_what_output_leaves():
    output = BoundedOutput(1000)
    output.stdout.feed(b"fine", final=True)
    output.stderr.feed(b"e" * 5_000, final=True)
    stdout, stderr = output.render()
    assert stdout == "fine"
    assert len(MARKER.sub("", stderr)) == 996
