from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from container_runtime.errors import StoreUnreadable
from container_runtime.journal import Journal
from container_runtime.model import Ending, Outcome, PtySize, StartSpec, StartStage
from container_runtime.records import (
    ContainerRecord,
    ContainerRequest,
    ContainerState,
    ExecutionRecord,
    ExecutionRequest,
    Size,
    SpoolPolicy,
    SpoolSpec,
    Totals,
)
from container_runtime.store import Store

NOW = datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)


def execution(name: str, container: str = "ctr_1") -> ExecutionRecord:
    spec = StartSpec(
        exec_id=name,
        argv=(b"printf", b"\t\n\xff\xc3\xa4"),
        env={b"A": b"\xfe"},
        cwd=b"/x",
        root=True,
        stdin=True,
        pty=PtySize(3, 4),
        timeout=timedelta(seconds=1.5),
    )
    return ExecutionRecord(
        ExecutionRequest(container, spec, SpoolSpec(70_000, SpoolPolicy.BLOCK)), NOW
    )


def ended(record: ExecutionRecord) -> ExecutionRecord:
    outcome = Outcome(
        Ending.START_FAILED, stage=StartStage.CWD, errno=2, message="none\tsuch\n", stdout_bytes=9
    )
    return replace(
        record, ended=NOW + timedelta(seconds=1), outcome=outcome, stdout=Totals(9, 3, 4)
    )


async def test_a_container_comes_back_as_it_was_put(tmp_path):
    record = ContainerRecord(
        id="ctr_1",
        node_id="n",
        request=ContainerRequest("r", "p", "i", Size.LARGE, {"a": "ä"}, {b"X": b"\xff"}),
        state=ContainerState.FAILED,
        created=NOW,
        last_active=NOW,
        engine_id="e",
        image_environment={b"PATH": b"/bin"},
        failure="how",
    )
    async with Store.opened(tmp_path) as store:
        await store.put_container(record)
    async with Store.opened(tmp_path) as store:
        assert await store.containers() == [record]
        await store.delete_container("ctr_1")
        assert await store.containers() == []


async def test_executions_come_back_in_order_and_with_their_ends(tmp_path):
    records = [execution(f"exec_{number}") for number in range(5)]
    async with Store.opened(tmp_path) as store:
        for record in records:
            store.add_execution(record)
        store.end_execution(ended(records[1]))
        assert await store.execution("exec_1") == ended(records[1])
        first = await store.executions("ctr_1", 0, 2)
        assert [record for _, record in first] == [records[0], ended(records[1])]
        rest = await store.executions("ctr_1", first[-1][0], 9)
        assert [record.id for _, record in rest] == ["exec_2", "exec_3", "exec_4"]
        assert [record.id for record in await store.running("ctr_1")] == [
            "exec_0",
            "exec_2",
            "exec_3",
            "exec_4",
        ]
        assert await store.execution("exec_9") is None


async def test_what_only_the_journal_has_is_replayed(tmp_path):
    async with Store.opened(tmp_path):
        pass
    record = execution("exec_1")
    copy = tmp_path / "copy"
    copy.mkdir()
    async with Store.opened(tmp_path) as store:
        store.add_execution(record)
        store.add_execution(execution("exec_2"))
        store.end_execution(ended(record))
        store.drop_execution("exec_2")
        store.add_execution(replace(execution("exec_2"), created=NOW + timedelta(days=1)))
        for path in tmp_path.iterdir():  # as a kill -9 would leave it: nothing committed yet
            if path.is_file():
                (copy / path.name).write_bytes(path.read_bytes())
    async with Store.opened(copy) as store:
        assert await store.execution("exec_1") == ended(record)
        second = await store.execution("exec_2")
        assert second is not None and second.created == NOW + timedelta(days=1)
        store.add_execution(execution("exec_3"))
        numbers = [number for number, _ in await store.executions("ctr_1", 0, 9)]
        assert numbers == sorted(set(numbers))


async def test_a_failed_commit_is_tried_again_and_loses_nothing(tmp_path):
    async with Store.opened(tmp_path) as store:
        failing = True
        apply = store._apply

        def flaky(changes):
            if failing:
                raise OSError("told to fail")
            apply(changes)

        store._apply = flaky  # type: ignore[method-assign]
        for number in range(3):
            store.add_execution(execution(f"exec_{number}"))
            with pytest.raises(OSError):
                await store.flush()
        failing = False
        await store.flush()
        store.add_execution(execution("exec_3"))
        await store.flush()
        assert len(await store.executions("ctr_1", 0, 9)) == 4
        assert [path.stat().st_size for path in tmp_path.glob("journal.*")] == [0, 0]


async def test_a_torn_note_is_passed_over(tmp_path):
    journal = Journal(tmp_path)
    for note in ("one", "two", "three"):
        journal.append(note)
    journal.close()
    path = tmp_path / "journal.0"
    path.write_bytes(path.read_bytes()[:-2])
    journal = Journal(tmp_path)
    assert journal.left_over() == ["one", "two"]
    journal.close()


async def test_another_releases_database_is_refused(tmp_path):
    import sqlite3

    with sqlite3.connect(tmp_path / "runtime.db") as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(StoreUnreadable):
        async with Store.opened(tmp_path):
            pass


async def test_deleting_a_container_forgets_its_executions(tmp_path):
    async with Store.opened(tmp_path) as store:
        store.add_execution(execution("exec_1"))
        store.add_execution(execution("exec_2", "ctr_2"))
        await store.delete_container("ctr_1")
        assert await store.execution_ids("ctr_1") == []
        assert await store.execution_ids("ctr_2") == ["exec_2"]
