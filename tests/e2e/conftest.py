"""Installations to test: one that is up for all tests of this folder, and new ones."""

from collections.abc import AsyncIterator

import pytest

from tests.e2e.place import Place, new_place, until


@pytest.fixture
async def place() -> AsyncIterator[Place]:
    """A home where nothing is up; when the test is over, nothing may be left."""
    async with new_place() as place:
        yield place


@pytest.fixture(scope="session")
async def running() -> AsyncIterator[Place]:
    """An installation that is up."""
    async with new_place() as place:
        await place.up()
        yield place


@pytest.fixture
async def up(running: Place) -> AsyncIterator[Place]:
    """The installation that is up; when the test is over, it has no container."""
    yield running

    async def clear() -> bool:  # a container that a killed command asked for may just be coming
        return not await running.containers() and not running.temporary_files()

    await until(clear)
