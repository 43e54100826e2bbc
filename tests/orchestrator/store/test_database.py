"""One writer, many waiters: what is together in a transaction, and what a failure takes with it."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection, Engine, inspect, text

from orchestrator.errors import DatabaseUnavailable
from orchestrator.store.database import Database
from orchestrator.store.engines import open_engines
from orchestrator.store.migrations import migrate, newest, run_steps
from orchestrator.store.tables import metadata
from tests.postgres import Cluster
from workroom.errors import InvalidField


@pytest.fixture
def where(tmp_path: Path, database_url: str) -> Path | str:
    return database_url or tmp_path / "db" / "test.sqlite"


@pytest.fixture
async def database(where: Path | str) -> AsyncIterator[Database]:
    async with Database(where) as database:
        await database.write(
            lambda c: c.execute(text("create table t (n integer unique)")).rowcount
        )
        yield database


def insert(number: int):
    def operation(connection: Connection) -> int:
        connection.execute(text("insert into t values (:n)"), {"n": number})
        return number

    return operation


async def numbers(database: Database) -> list[int]:
    return await database.read(
        lambda c: list(c.execute(text("select n from t order by n")).scalars())
    )


async def test_writes_are_told_in_the_order_of_their_commits(database: Database):
    told: list[int] = []
    results = await asyncio.gather(*(database.write(insert(n), told.append) for n in range(500)))
    assert results == told == list(range(500))
    assert await numbers(database) == told


async def test_a_write_that_fails_takes_no_other_with_it(database: Database):
    told: list[int] = []
    writes = [database.write(insert(n), told.append) for n in (1, 2, 2, 3)]
    results = await asyncio.gather(*writes, return_exceptions=True)
    assert [result for result in results if not isinstance(result, BaseException)] == [1, 2, 3]
    assert isinstance(results[2], Exception)
    assert told == await numbers(database) == [1, 2, 3]


async def test_a_caller_that_is_cancelled_does_not_undo_its_write(database: Database):
    told: list[int] = []
    database.write(insert(1), told.append).cancel()
    await database.write(insert(2))
    assert told == [1]
    assert await numbers(database) == [1, 2]


async def test_what_is_written_is_there_after_closing(where: Path | str):
    async with Database(where) as database:
        await database.write(lambda c: c.execute(text("create table t (n integer)")).rowcount)
        pending = [database.write(insert(n)) for n in range(50)]
    await asyncio.gather(*pending)
    async with Database(where) as database:
        assert await numbers(database) == list(range(50))


def form_of(engine: Engine) -> dict[str, set[str]]:
    """Every table with its columns, keys and indexes, and the number of the form."""
    seen = inspect(engine)
    form = {
        table: {
            *(f"{c['name']} {c['type']} {c['nullable']}" for c in seen.get_columns(table)),
            *(f"index {i['name']} {i['column_names']}" for i in seen.get_indexes(table)),
            *(f"unique {u['column_names']}" for u in seen.get_unique_constraints(table)),
            *(f"to {k['referred_table']} {k['options']}" for k in seen.get_foreign_keys(table)),
            f"key {seen.get_pk_constraint(table)['constrained_columns']}",
        }
        for table in seen.get_table_names()
    }
    with engine.connect() as connection:
        number = connection.execute(text("select version_num from alembic_version")).scalar()
    return form | {"number": {str(number)}}


@pytest.fixture
def engine(where: Path | str) -> Iterator[Engine]:
    engines = open_engines(Database(where).url)
    yield engines.writing
    engines.dispose()


def test_the_migrations_make_the_tables(engine: Engine):
    with engine.begin() as connection:
        run_steps(connection)
    migrate(engine)
    with engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []
        assert connection.execute(text("select version_num from alembic_version")).all() == [
            (newest(),)
        ]


def test_an_empty_database_gets_the_form_that_the_migrations_lead_to(engine: Engine):
    migrate(engine)
    migrate(engine)
    new = form_of(engine)
    with engine.begin() as connection:
        metadata.drop_all(connection)
        connection.execute(text("drop table alembic_version"))
    with engine.begin() as connection:
        run_steps(connection)
    assert form_of(engine) == new


def test_a_database_of_an_earlier_release_is_brought_up_to_date(engine: Engine):
    with engine.begin() as connection:
        connection.execute(text("create table alembic_version (version_num varchar(32))"))
    migrate(engine)
    migrate(engine)
    assert "sessions" in form_of(engine)


def test_every_table_says_which_project_its_rows_belong_to():
    assert all("project_id" in table.c for table in metadata.tables.values())


@pytest.mark.parametrize("url", ["sqlite://", "mysql://x/y", "nothing", ":memory:"])
def test_a_database_that_is_not_known_is_refused(url: str):
    with pytest.raises(InvalidField) as refused:
        Database(url)
    assert refused.value.field == "database_url"


async def test_a_database_that_does_not_answer_is_said_to(tmp_path: Path):
    database = Database(f"postgresql://nobody:secret@/x?host={tmp_path}")
    with pytest.raises(DatabaseUnavailable) as unavailable:
        await database.__aenter__()
    assert "secret" not in unavailable.value.message


@pytest.mark.slow
async def test_a_connection_that_is_cut_is_made_again(cluster: Callable[[], Cluster]):
    url = cluster().database("cut")
    async with Database(url) as database:
        await database.write(lambda c: c.execute(text("create table t (n integer)")).rowcount)
        await database.write(insert(1))
        assert await numbers(database) == [1]
        cluster().disconnect("cut")
        await database.write(insert(2))
        assert await numbers(database) == [1, 2]
        cluster().disconnect("cut")
        assert await numbers(database) == [1, 2]
