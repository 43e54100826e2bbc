"""What every engine must do for commands."""

import asyncio

import grpc
import pytest

from tests.container_runtime.node import digest, reason, seconds, start
from workroom.runtime.v1 import containers_pb2 as cpb
from workroom.runtime.v1 import executions_pb2 as epb


async def test_a_command_answers_with_its_code_and_both_streams(node, container):
    done = await node.calls.run(container, "echo out; echo err >&2; exit 3")
    assert done.execution.outcome.exited.code == 3
    assert (done.stdout.head, done.stderr.head) == (b"out\n", b"err\n")
    assert (done.execution.stdout.total_bytes, done.execution.stderr.total_bytes) == (4, 4)


async def test_a_code_of_zero_is_said_and_not_left_out(node, container):
    done = await node.calls.run(container, "true")
    assert done.execution.outcome.WhichOneof("kind") == "exited"
    assert done.execution.state == epb.Execution.STATE_ENDED


async def test_a_command_runs_as_the_default_user_in_the_workspace(node, container):
    done = await node.calls.run(container, "id -u; id -g; pwd; echo $HOME; umask")
    assert done.stdout.head == b"1000\n1000\n/workspace\n/workspace\n0022\n"


async def test_root_is_given_when_it_is_asked_for(node, container):
    done = await node.calls.run(container, "id -u", user=epb.Command.USER_ROOT)
    assert done.stdout.head == b"0\n"


async def test_environment_is_that_of_image_container_and_command(node):
    variables = [cpb.EnvironmentVariable(name=name, value="container") for name in ("A", "B")]
    created = await node.calls.create(environment=variables)
    own = [cpb.EnvironmentVariable(name="B", value="command")]
    done = await node.calls.run(created.id, 'echo $A $B; test -n "$PATH"', environment=own)
    assert done.stdout.head == b"container command\n"
    assert done.execution.outcome.exited.code == 0


async def test_a_missing_program_is_an_outcome_and_no_error(node, container):
    request = epb.RunRequest(start=start(container, ["no-such-program"]))
    done = await node.calls.executions.Run(request)
    failed = done.execution.outcome.start_failed
    assert (failed.stage, failed.errno) == (epb.StartFailed.STAGE_EXECUTE, 2)
    assert not done.execution.HasField("start_time")


async def test_a_missing_directory_is_an_outcome_and_no_error(node, container):
    done = await node.calls.run(container, "true", cwd="/no/such/place")
    assert done.execution.outcome.start_failed.stage == epb.StartFailed.STAGE_WORKING_DIRECTORY


async def test_a_signal_of_its_own_is_told_apart_from_a_code(node, container):
    done = await node.calls.run(container, "kill -USR1 $$")
    assert done.execution.outcome.signalled.signal == 10


async def test_a_repeated_start_returns_the_same_execution(node, container):
    script = "echo once >> /workspace/log; sleep 0.2"
    first, second = await asyncio.gather(
        *(node.calls.start(container, script, execution_id="exec_same") for _ in range(2))
    )
    await node.calls.wait("exec_same")
    third = await node.calls.start(container, script, execution_id="exec_same")
    assert first.id == second.id == third.id
    assert third.state == epb.Execution.STATE_ENDED
    assert (await node.calls.run(container, "cat /workspace/log")).stdout.head == b"once\n"


async def test_an_id_with_another_command_is_refused(node, container):
    await node.calls.start(container, "true", execution_id="exec_same")
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await node.calls.start(container, "false", execution_id="exec_same")
    assert refused.value.code() == grpc.StatusCode.ALREADY_EXISTS
    assert reason(refused.value) == "EXECUTION_EXISTS"


async def test_stdin_is_read_to_its_end(node, container):
    data = bytes(range(256)) * 2000
    done = await node.calls.run(container, "sha256sum", stdin=data)
    assert done.stdout.head.split()[0].decode() == digest(data)


async def test_stdin_is_written_by_offset_and_repeats_are_dropped(node, container):
    running = await node.calls.start(container, "cat", open_stdin=True)
    write = node.calls.executions.WriteStdin

    async def put(offset: int, data: bytes, end: bool = False) -> int:
        request = epb.WriteStdinRequest(execution_id=running.id, offset=offset, data=data, end=end)
        return (await write(request)).accepted_offset

    assert await put(0, b"abc") == 3
    assert await put(0, b"abc") == 3
    assert await put(1, b"bcde") == 5
    with pytest.raises(grpc.aio.AioRpcError) as ahead:
        await put(9, b"x")
    assert ahead.value.code() == grpc.StatusCode.OUT_OF_RANGE
    assert await put(5, b"f", end=True) == 6
    assert await put(5, b"f", end=True) == 6
    ended = await node.calls.watch(running.id)
    assert ended.stdout == b"abcdef"
    assert ended.ended.stdin_bytes == 6
    with pytest.raises(grpc.aio.AioRpcError) as closed:
        await put(6, b"g")
    assert reason(closed.value) == "STDIN_CLOSED"


async def test_a_command_without_stdin_reads_an_end_at_once(node, container):
    done = await node.calls.run(container, "cat; echo done")
    assert done.stdout.head == b"done\n"


async def test_a_timeout_ends_the_whole_tree(node, container):
    script = """
        setsid sleep 7771 &
        (setsid sh -c 'sleep 7772 & sleep 7773' &)
        trap '' TERM
        echo begun; sleep 7774; sleep 7775
    """
    done = await node.calls.run(container, script, timeout=seconds(0.5), kill_grace=seconds(0.3))
    assert done.execution.outcome.WhichOneof("kind") == "timed_out"
    assert done.stdout.head == b"begun\n"
    left = await node.calls.run(
        container, "cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -c '[s]leep 777' || true"
    )
    assert left.stdout.head == b"0\n"


async def test_cancel_ends_the_tree_and_answers_when_it_has(node, container):
    running = await node.calls.start(container, "echo on; setsid sleep 8881 & sleep 8882")
    request = epb.CancelExecutionRequest(execution_id=running.id)
    for _ in range(2):
        ended = (await node.calls.executions.CancelExecution(request)).execution
        assert ended.outcome.WhichOneof("kind") == "cancelled"
    left = await node.calls.run(
        container, "cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -c '[s]leep 888' || true"
    )
    assert left.stdout.head == b"0\n"


async def test_a_signal_reaches_a_command_and_is_no_op_after_its_end(node, container):
    running = await node.calls.start(
        container, "trap 'echo got; exit 5' INT; echo ready; while :; do sleep 0.05; done"
    )
    request = epb.SignalExecutionRequest(execution_id=running.id, signal=2)
    async for event in node.calls.executions.WatchExecution(
        epb.WatchExecutionRequest(execution_id=running.id)
    ):
        if event.output.data == b"ready\n":
            await node.calls.executions.SignalExecution(request)
    assert event.ended.outcome.exited.code == 5
    await node.calls.executions.SignalExecution(request)


async def test_a_background_child_with_the_pipe_does_not_hold_up_the_end(node, container):
    done = await node.calls.run(container, "sleep 30 & exit 3")
    assert done.execution.outcome.exited.code == 3
    assert done.execution.outcome.output_held


async def test_a_call_yields_and_the_command_goes_on(node, container):
    request = epb.RunRequest(
        start=start(container, "echo early; sleep 0.5; echo late"), yield_time=seconds(0.2)
    )
    yielded = await node.calls.executions.Run(request)
    assert yielded.execution.state == epb.Execution.STATE_RUNNING
    assert yielded.stdout.head == b"early\n"
    rest = await node.calls.watch(yielded.execution.id, stdout=6)
    assert rest.stdout == b"late\n"


async def test_wait_answers_in_time_with_the_command_still_running(node, container):
    running = await node.calls.start(container, "sleep 30")
    request = epb.WaitExecutionRequest(execution_id=running.id, max_wait=seconds(0.1))
    answer = await node.calls.executions.WaitExecution(request)
    assert answer.execution.state == epb.Execution.STATE_RUNNING


async def test_watchers_see_the_same_and_can_begin_anywhere(node, container):
    running = await node.calls.start(container, "for i in 1 2 3 4; do echo $i; sleep 0.05; done")
    whole, late = await asyncio.gather(
        node.calls.watch(running.id), node.calls.watch(running.id, stdout=0)
    )
    assert whole.stdout == late.stdout == b"1\n2\n3\n4\n"
    assert (await node.calls.watch(running.id, stdout=4)).stdout == b"3\n4\n"
    with pytest.raises(grpc.aio.AioRpcError) as past:
        await node.calls.watch(running.id, stdout=9)
    assert reason(past.value) == "OFFSET_OUT_OF_RANGE"


async def test_nothing_of_a_long_output_is_lost_or_doubled(node, container):
    done = await node.calls.run(container, "seq 1 1000000 >&2; seq 1 10")
    seen = await node.calls.watch(done.execution.id)
    expected = "".join(f"{number}\n" for number in range(1, 1_000_001)).encode()
    assert digest(seen.stderr) == digest(expected)
    assert seen.ended.stderr.total_bytes == len(expected)
    assert (done.stderr.omitted_bytes, len(done.stderr.head)) == (len(expected) - 65536, 32768)


async def test_a_full_spool_keeps_both_ends_and_says_what_is_gone(node, container):
    spool = epb.Spool(bytes_per_stream=65536)
    done = await node.calls.run(container, "seq 1 100000", spool=spool)
    expected = "".join(f"{number}\n" for number in range(1, 100_001)).encode()
    seen = await node.calls.watch(done.execution.id)
    assert seen.stdout == expected[:32768] + expected[-32768:]
    (gap,) = seen.gaps
    totals = done.execution.stdout
    assert (gap.offset, gap.length) == (totals.gap_offset, totals.gap_bytes)
    assert totals.total_bytes == len(expected)
    read = await node.calls.executions.ReadOutput(
        epb.ReadOutputRequest(
            execution_id=done.execution.id, stream=epb.OUTPUT_STREAM_STDOUT, offset=40000
        )
    )
    assert read.gap.offset == 40000
    assert read.gap.offset + read.gap.length == gap.offset + gap.length


async def test_a_blocking_spool_waits_for_its_watcher_and_loses_nothing(node, container):
    spool = epb.Spool(bytes_per_stream=65536, policy=epb.Spool.POLICY_BLOCK)
    running = await node.calls.start(container, "seq 1 200000", spool=spool)
    request = epb.WaitExecutionRequest(execution_id=running.id, max_wait=seconds(0.3))
    waiting = (await node.calls.executions.WaitExecution(request)).execution
    assert waiting.state == epb.Execution.STATE_RUNNING
    seen = await node.calls.watch(running.id)
    expected = "".join(f"{number}\n" for number in range(1, 200_001)).encode()
    assert digest(seen.stdout) == digest(expected)
    assert not seen.gaps


async def test_a_blocked_command_can_be_cancelled_and_timed_out(node, container):
    spool = epb.Spool(bytes_per_stream=65536, policy=epb.Spool.POLICY_BLOCK)
    running = await node.calls.start(container, "yes", spool=spool)
    cancel = epb.CancelExecutionRequest(execution_id=running.id)
    ended = (await node.calls.executions.CancelExecution(cancel)).execution
    assert ended.outcome.WhichOneof("kind") == "cancelled"
    timed = await node.calls.run(container, "yes", spool=spool, timeout=seconds(0.3))
    assert timed.execution.outcome.WhichOneof("kind") == "timed_out"


async def test_a_terminal_is_one_stream_and_can_be_resized(node, container):
    script = 'test -t 0 && stty size; read line; stty size; echo "<$line>"'
    running = await node.calls.start(
        container, script, terminal=epb.Terminal(rows=11, columns=22), open_stdin=True
    )
    calls = node.calls.executions
    seen = b""
    async for event in calls.WatchExecution(epb.WatchExecutionRequest(execution_id=running.id)):
        before, seen = seen, seen + event.output.data
        if b"11 22" in seen and b"11 22" not in before:
            size = epb.Terminal(rows=33, columns=44)
            await calls.ResizeTerminal(
                epb.ResizeTerminalRequest(execution_id=running.id, terminal=size)
            )
            await calls.WriteStdin(epb.WriteStdinRequest(execution_id=running.id, data=b"hi\n"))
    assert b"33 44" in seen and b"<hi>" in seen


async def test_a_resize_without_a_terminal_is_refused(node, container):
    done = await node.calls.run(container, "true")
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await node.calls.executions.ResizeTerminal(
            epb.ResizeTerminalRequest(execution_id=done.execution.id)
        )
    assert reason(refused.value) == "NO_TERMINAL"


async def test_executions_are_listed_oldest_first_in_pages(node, container):
    for number in range(5):
        await node.calls.run(container, "true", execution_id=f"exec_{number}")
    seen, token = [], ""
    while True:
        page = await node.calls.executions.ListExecutions(
            epb.ListExecutionsRequest(container_id=container, page_size=2, page_token=token)
        )
        seen += [each.id for each in page.executions]
        token = page.next_page_token
        if not token:
            break
    assert seen == [f"exec_{number}" for number in range(5)]
    assert page.executions[0].outcome.WhichOneof("kind") == "exited"


async def test_unknown_things_are_not_found(node):
    for call in (node.calls.execution("exec_none"), node.calls.run("ctr_none", "true")):
        with pytest.raises(grpc.aio.AioRpcError) as missing:
            await call
        assert missing.value.code() == grpc.StatusCode.NOT_FOUND


async def test_fields_that_are_not_allowed_are_named(node, container):
    cases = {
        "command.program": epb.StartExecutionRequest(container_id=container),
        "execution_id": start(container, "true", execution_id="../x"),
        "command.cwd": start(container, "true", cwd="relative"),
        "timeout": start(container, "true", timeout=seconds(-1)),
        "kill_grace": start(container, "true", kill_grace=seconds(61)),
        "spool.bytes_per_stream": start(container, "true", spool=epb.Spool(bytes_per_stream=1)),
        "command.terminal.rows": start(container, "true", terminal=epb.Terminal(rows=1001)),
        "command.argv.args": start(container, [""]),
    }
    for field, request in cases.items():
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await node.calls.executions.StartExecution(request)
        assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert refused.value.details().startswith(f"{field}:")
