from concurrent.futures import ThreadPoolExecutor

import pytest

from container_runtime.output import BoundedOutput, bounded_output, whole_end, whole_start
from container_runtime.records import SpoolSpec
from container_runtime.spool import StreamSpool


@pytest.fixture
async def cut(tmp_path):
    with ThreadPoolExecutor(1) as executor:
        spools = []

        async def cut(data: bytes, limit: int, kept: int = 1000) -> BoundedOutput:
            path = str(tmp_path / str(len(spools)))
            spools.append(StreamSpool(path, SpoolSpec(kept), executor))
            await spools[-1].write(0, data, lambda: None)
            return bounded_output(spools[-1], limit)

        yield cut
        for spool in spools:
            spool.close()


async def test_what_fits_is_all_in_the_head(cut):
    assert await cut(b"abc", 3) == BoundedOutput(b"abc")


async def test_the_middle_is_left_out_and_counted(cut):
    assert await cut(b"abcdefghij", 4) == BoundedOutput(b"ab", 6, b"ij")
    assert await cut(b"abcdefghij", 5) == BoundedOutput(b"ab", 5, b"hij")


async def test_no_character_is_split(cut):
    data = "äöü☕💡".encode() * 20
    for limit in range(1, 60):
        found = await cut(data, limit)
        found.head.decode()
        found.tail.decode()
        assert len(found.head) + len(found.tail) <= limit
        assert len(found.head) + found.omitted + len(found.tail) == len(data)


async def test_a_spool_smaller_than_the_limit_gives_what_it_kept(cut):
    data = bytes(range(100)) * 50
    found = await cut(data, 4000, kept=1000)
    assert (found.head, found.tail) == (data[:500], data[-500:])
    assert found.omitted == len(data) - 1000


def test_bytes_that_are_no_text_are_cut_anywhere():
    assert whole_end(b"\xff\xfe\xfd") == b"\xff\xfe"  # as if a character began with the last
    assert whole_end(b"\x80\x80\x80\x80\x80") == b"\x80" * 5
    assert whole_start(b"\x80" * 5) == b"\x80" * 5
    assert whole_start(b"\xb6b") == b"b"
