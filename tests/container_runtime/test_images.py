"""Our own images are built when they are first asked for."""

import asyncio
from typing import Any

import pytest

from container_runtime.engine import Image
from container_runtime.errors import ImageNotFound
from container_runtime.images import Images
from container_runtime.setup.errors import SetupFailed


class Shelf:
    """The one verb of an engine that images need."""

    def __init__(self) -> None:
        self.there: set[str] = set()

    async def image(self, name, pull_timeout):
        if name not in self.there:
            raise ImageNotFound(f"no {name}", image=name)
        return Image(name, {})


@pytest.fixture
async def tasks():
    async with asyncio.TaskGroup() as tasks:
        yield tasks


class Builder:
    def __init__(self, shelf: Shelf) -> None:
        self.shelf, self.asked, self.may_end = shelf, 0, asyncio.Event()

    async def __call__(self, name: str) -> None:
        self.asked += 1
        await self.may_end.wait()
        self.shelf.there.add(name)


async def test_one_build_serves_all_who_ask_and_outlives_those_who_leave(tasks):
    shelf: Any = Shelf()
    builder = Builder(shelf)
    images = Images(shelf, tasks, builder)
    first, second = [asyncio.create_task(images.get("full")) for _ in range(2)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.wait([first])
    builder.may_end.set()
    assert (await second).reference == "full"
    assert (await images.get("full")).reference == "full"
    assert builder.asked == 1


async def test_what_is_not_ours_is_not_built(tasks):
    shelf: Any = Shelf()
    builder = Builder(shelf)
    with pytest.raises(ImageNotFound):
        await Images(shelf, tasks, builder).get("someone/else")
    with pytest.raises(ImageNotFound):
        await Images(shelf, tasks, None).get("full")
    with pytest.raises(ImageNotFound):
        await Images(shelf, tasks, builder).find("full")
    assert builder.asked == 0


async def test_a_build_that_fails_says_why_and_is_tried_again(tasks):
    attempts = []

    async def build(name: str) -> None:
        attempts.append(name)
        raise SetupFailed("no packages today")

    shelf: Any = Shelf()
    images = Images(shelf, tasks, build)
    for _ in range(2):
        with pytest.raises(SetupFailed, match="no packages today"):
            await images.get("full")
    assert attempts == ["full", "full"]
