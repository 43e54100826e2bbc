import asyncio
import os
import random
from concurrent.futures import ThreadPoolExecutor

import pytest

from container_runtime.errors import SpoolFailed
from container_runtime.records import SpoolPolicy, SpoolSpec
from container_runtime.spool import Gap, StreamSpool


class Recorder:
    def __init__(self) -> None:
        self.told = 0

    def __call__(self) -> None:
        self.told += 1


class At:
    """A reader that stands somewhere."""

    def __init__(self, offset: int) -> None:
        self.offset = offset

    def position(self) -> int:
        return self.offset


@pytest.fixture
def executor():
    with ThreadPoolExecutor(1) as executor:
        yield executor


@pytest.fixture
def make(tmp_path, executor):
    made = []

    def make(size: int = 1000, policy: SpoolPolicy = SpoolPolicy.KEEP_ENDS) -> StreamSpool:
        made.append(StreamSpool(str(tmp_path / "stream"), SpoolSpec(size, policy), executor))
        return made[-1]

    yield make
    for spool in made:
        spool.close()


def everything(spool: StreamSpool) -> tuple[bytes, list[Gap]]:
    """All that can be read, and the gaps between."""
    data, gaps, offset = b"", [], 0
    while found := spool.read(offset, 77):
        if isinstance(found, Gap):
            gaps.append(found)
            offset += found.length
        else:
            data += found
            offset += len(found)
    return data, gaps


async def written(spool: StreamSpool, data: bytes) -> None:
    offset = spool.total
    while data:
        piece, data = data[:90], data[90:]
        await spool.write(offset, piece, Recorder())
        offset += len(piece)


async def test_all_is_kept_below_the_bound(make):
    spool = make()
    data = os.urandom(1000)
    await written(spool, data)
    assert everything(spool) == (data, [])
    assert spool.totals().gap_bytes == 0


@pytest.mark.parametrize("length", [1001, 1500, 1501, 4321])
async def test_past_the_bound_the_first_and_last_half_stay(make, length):
    spool = make()
    data = os.urandom(length)
    await written(spool, data)
    kept, gaps = everything(spool)
    assert kept == data[:500] + data[-500:]
    assert gaps == [Gap(500, length - 1000)]
    totals = spool.totals()
    assert (totals.total, totals.gap_offset, totals.gap_bytes) == (length, 500, length - 1000)


async def test_bytes_that_came_before_are_passed_over_and_a_jump_is_refused(make):
    spool = make()
    await spool.write(0, b"abcdef", Recorder())
    await spool.write(3, b"defgh", Recorder())
    assert everything(spool)[0] == b"abcdefgh"
    with pytest.raises(SpoolFailed):
        await spool.write(9, b"x", Recorder())


@pytest.mark.parametrize("length", [0, 300, 1000, 2345])
async def test_another_process_takes_up_what_is_on_disk(make, length):
    data = os.urandom(length)
    await written(make(), data)
    again = make()
    again.recover()
    assert again.total == length
    await written(again, b"more")
    kept, _ = everything(again)
    assert kept == (data + b"more" if length < 996 else data[:500] + (data + b"more")[-500:])


async def test_a_turn_that_was_cut_short_is_made_good_by_sending_again(make, tmp_path):
    data = os.urandom(3000)
    await written(make(), data[:2000])
    # As if killed after noting the turn and writing only a part of it.
    cut = make()
    cut.recover()
    cut._tail = 2100 - 500
    cut._open()
    cut._note_ring()
    cut._put(2000, data[2000:2050])
    again = make()
    again.recover()
    assert again.received == 2000
    kept, gaps = everything(again)
    assert kept == data[:500] + data[1600:2000]
    assert gaps == [Gap(500, 1100)]
    await again.write(2000, data[2000:2100], Recorder())
    assert everything(again)[0] == data[:500] + data[1600:2100]


async def test_a_blocked_writer_waits_for_the_slowest_reader_and_loses_nothing(make):
    spool = make(policy=SpoolPolicy.BLOCK)
    data = os.urandom(10_000)
    writing = asyncio.create_task(written(spool, data))
    quick, slow = At(0), At(0)
    spool.attach(quick)
    spool.attach(slow)
    chance = random.Random(1)
    seen = b""
    while slow.offset < len(data):
        await asyncio.sleep(0)
        found = spool.read(quick.offset, chance.randint(1, 400))
        assert isinstance(found, bytes)
        quick.offset += len(found)
        found = spool.read(slow.offset, chance.randint(1, 100))
        assert isinstance(found, bytes)
        seen += found
        slow.offset += len(found)
        spool.consumed(slow.offset)
        assert spool.total <= max(1000, slow.offset + 500)
    await writing
    assert seen == data


async def test_half_a_blocked_spool_stays_behind_a_reader_that_comes_back(make):
    spool = make(policy=SpoolPolicy.BLOCK)
    data = os.urandom(3000)
    writing = asyncio.create_task(written(spool, data))
    reader = At(0)
    spool.attach(reader)
    await asyncio.sleep(0)
    reader.offset = 900
    spool.detach(reader)
    for _ in range(20):
        await asyncio.sleep(0)
    assert not writing.done()
    assert spool.read(400, 100) == data[400:500]
    spool.release()
    await writing


async def test_an_end_with_bytes_missing_says_so(make):
    spool = make()
    await written(spool, b"abc")
    spool.finish(5)
    assert everything(spool) == (b"abc", [Gap(3, 2)])
    assert (spool.total, spool.totals().gap_bytes) == (5, 2)


async def test_nothing_is_written_for_a_silent_command(make, tmp_path):
    spool = make()
    spool.finish(0)
    assert list(tmp_path.iterdir()) == []
    assert spool.read(0, 10) == b""
