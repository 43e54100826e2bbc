import asyncio

import pytest

from workroom.errors import Draining
from workroom.rpc.drain import Drain


async def test_body_is_cancelled_cleaned_up_and_ends_as_draining():
    drain, cleaned = Drain(), asyncio.Event()
    asyncio.get_running_loop().call_soon(drain.begin)
    with pytest.raises(Draining):
        async with drain.interrupting():
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0)
                cleaned.set()
    assert cleaned.is_set()
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_body_is_not_begun_once_the_drain_has():
    drain = Drain()
    drain.begin()
    drain.begin()
    assert drain.begun
    await drain.wait()
    with pytest.raises(Draining):
        async with drain.interrupting():
            pytest.fail("begun")


async def test_body_that_ends_first_is_left_alone():
    drain = Drain()
    async with drain.interrupting():
        pass
    with pytest.raises(TimeoutError):
        async with drain.interrupting():
            raise TimeoutError("its own")
    drain.begin()
    await asyncio.sleep(0)


async def test_own_timeout_inside_stays_a_timeout():
    drain = Drain()
    with pytest.raises(TimeoutError):
        async with drain.interrupting(), asyncio.timeout(0):
            await asyncio.Event().wait()


async def test_cancellation_from_outside_stays_one():
    drain = Drain()
    entered = asyncio.Event()

    async def body():
        async with drain.interrupting():
            entered.set()
            await asyncio.Event().wait()

    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(body())
        await entered.wait()
        task.cancel()
    assert task.cancelled()
