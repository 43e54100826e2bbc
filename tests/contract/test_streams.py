"""What the multiplexed stream promises."""

import asyncio
import hashlib
import random
from typing import Any

import grpc
import pytest

from tests.container_runtime.node import reason, start, until
from workroom.runtime.v1 import executions_pb2 as epb

Request = epb.StreamExecutionsRequest


def begin(container_id: str, execution_id: str, script: str, credit: int = 0, **fields) -> Request:
    return Request(
        execution_id=execution_id,
        start=Request.Start(
            start=start(container_id, script, **fields), initial_credit_bytes=credit
        ),
    )


async def test_many_executions_in_several_containers_share_one_stream(node):
    containers = [(await node.calls.create()).id for _ in range(3)]
    call = node.calls.executions.StreamExecutions()
    expected = {}
    for number in range(200):
        size = random.Random(number).randint(0, 60_000)
        script = f"head -c {size} /dev/zero | tr '\\0' {chr(97 + number % 26)}; exit {number % 7}"
        data = chr(97 + number % 26).encode() * size
        expected[f"exec_{number}"] = (hashlib.sha256(data).hexdigest(), number % 7)
        await call.write(begin(containers[number % 3], f"exec_{number}", script))
    await call.done_writing()
    sums = {name: hashlib.sha256() for name in expected}
    seen, started = {}, set()
    async for answer in call:
        match answer.WhichOneof("event"):
            case "started":
                started.add(answer.execution_id)
            case "output":
                assert answer.execution_id in started
                sums[answer.execution_id].update(answer.output.data)
            case "ended":
                assert answer.execution_id not in seen
                code = answer.ended.outcome.exited.code
                seen[answer.execution_id] = (sums[answer.execution_id].hexdigest(), code)
            case other:
                raise AssertionError(other)
    assert seen == expected


async def test_output_flows_only_while_there_is_credit(node, container):
    call = node.calls.executions.StreamExecutions()
    await call.write(begin(container, "exec_1", "head -c 300000 /dev/zero", credit=100_000))
    await call.write(begin(container, "exec_2", "echo other"))
    got, other = 0, False
    while got < 100_000 or not other:
        answer = await call.read()
        got += len(answer.output.data) if answer.execution_id == "exec_1" else 0
        other = other or (answer.execution_id == "exec_2" and answer.HasField("ended"))
    assert got == 100_000
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await asyncio.shield(pending := asyncio.ensure_future(call.read()))
    await call.write(Request(execution_id="exec_1", credit=Request.Credit(bytes=500_000)))
    answer = await pending
    while not answer.HasField("ended"):
        got += len(answer.output.data)
        answer = await call.read()
    assert got == 300_000
    await call.done_writing()
    assert await call.read() == grpc.aio.EOF


async def test_stdin_signals_and_failures_are_answered_for_their_execution(node, container):
    call = node.calls.executions.StreamExecutions()
    await call.write(begin(container, "exec_1", "cat; read never", open_stdin=True))
    stdin = epb.WriteStdinRequest(offset=0, data=b"typed", end=False)
    await call.write(Request(execution_id="exec_1", stdin=stdin))
    await call.write(Request(execution_id="exec_none", watch=Request.Watch()))
    await call.write(Request(execution_id="exec_1", resize=epb.ResizeTerminalRequest()))
    seen: dict[str, Any] = {"failed": []}
    while len(seen["failed"]) < 2 or "output" not in seen or "stdin_accepted" not in seen:
        answer = await call.read()
        kind = answer.WhichOneof("event")
        if kind == "failed":
            seen["failed"].append((answer.execution_id, answer.failed.reason))
        else:
            seen[kind] = answer
    assert sorted(seen["failed"]) == [
        ("exec_1", "NO_TERMINAL"),
        ("exec_none", "EXECUTION_NOT_FOUND"),
    ]
    assert seen["output"].output.data == b"typed"
    assert seen["stdin_accepted"].stdin_accepted.accepted_offset == 5
    await call.write(Request(execution_id="exec_1", cancel=epb.CancelExecutionRequest()))
    while not (answer := await call.read()).HasField("ended"):
        pass
    assert answer.ended.outcome.WhichOneof("kind") == "cancelled"


async def test_a_stream_can_be_left_and_resumed_by_offset(node, container):
    first = node.calls.executions.StreamExecutions()
    await first.write(begin(container, "exec_1", "echo one; sleep 0.4; echo two"))
    while not (await first.read()).HasField("output"):
        pass
    first.cancel()
    second = node.calls.executions.StreamExecutions()
    await second.write(Request(execution_id="exec_1", watch=Request.Watch(stdout_offset=4)))
    await second.done_writing()
    answers = [answer async for answer in second]
    assert b"".join(answer.output.data for answer in answers) == b"two\n"
    assert answers[-1].HasField("ended")


async def test_a_request_that_names_nothing_ends_the_stream(node, container):
    for request in (Request(execution_id="exec_1"), Request(watch=Request.Watch())):
        call = node.calls.executions.StreamExecutions()
        await call.write(request)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            while await call.read() is not grpc.aio.EOF:
                pass
        assert reason(refused.value) == "INVALID_FIELD"


async def test_a_reader_that_never_reads_hinders_nobody(node, container):
    stuck = node.calls.executions.StreamExecutions()
    await stuck.write(begin(container, "exec_stuck", "yes", credit=2**40))
    watcher = node.calls.executions.WatchExecution(
        epb.WatchExecutionRequest(execution_id="exec_stuck")
    )
    async with asyncio.timeout(10):
        for _ in range(20):
            done = await node.calls.run(container, "echo free")
            assert done.stdout.head == b"free\n"
        cancel = epb.CancelExecutionRequest(execution_id="exec_stuck")
        ended = await node.calls.executions.CancelExecution(cancel)
    assert ended.execution.outcome.WhichOneof("kind") == "cancelled"
    watcher.cancel()
    stuck.cancel()


async def test_clients_that_vanish_leave_no_watchers(node, container):
    running = await node.calls.start(container, "sleep 60", execution_id="exec_1")
    execution = await node.runtime.executions.get("exec_1")
    calls = [
        node.calls.executions.WatchExecution(epb.WatchExecutionRequest(execution_id=running.id))
        for _ in range(10)
    ]
    streams = [node.calls.executions.StreamExecutions() for _ in range(10)]
    for stream in streams:
        await stream.write(Request(execution_id="exec_1", watch=Request.Watch()))
    await until(lambda: len(execution._listeners) == 20)
    for call in (*calls, *streams):
        call.cancel()
    await until(lambda: not execution._listeners)
    assert (await node.calls.execution("exec_1")).state == epb.Execution.STATE_RUNNING
