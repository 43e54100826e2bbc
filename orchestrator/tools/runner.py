"""Owns running commands: several at once, their results as they end, and calling them off.

Every command goes over one stream of the runtime, whichever session it belongs to. Knows no
session, no item and no model.
"""

import asyncio
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing, suppress
from datetime import timedelta
from types import TracebackType
from typing import Self

import grpc

from orchestrator.runtime_errors import RuntimeUnavailable, container_error
from orchestrator.tools.followers import KILL_GRACE, Follower, OnDelta, PlannedCommand
from orchestrator.tools.results import CommandResult
from orchestrator.tools.stream import ExecutionStream
from workroom.errors import WorkroomError
from workroom.rpc.status import from_rpc_error
from workroom.runtime.v1 import executions_pb2 as pb
from workroom.runtime.v1 import executions_pb2_grpc as rpc

PATIENCE = timedelta(seconds=60)
"""How long a runtime may be away before those who wait for it are told."""
ACCEPT_TIME = timedelta(seconds=30)
"""How long a runtime may take to accept a command once it has been asked."""
END_TIME = timedelta(seconds=30)
"""How long after its timeout and grace the end of a command may become known."""


class AlreadyFollowed(WorkroomError):
    """Somebody in this process follows the execution already."""

    code = grpc.StatusCode.ALREADY_EXISTS
    reason = "EXECUTION_FOLLOWED"


class CommandRunner:
    """Runs commands in containers. An async context manager, entered once."""

    def __init__(self, channel: grpc.aio.Channel, *, patience: timedelta = PATIENCE) -> None:
        self._stub = rpc.ExecutionServiceStub(channel)
        self._stream = ExecutionStream(channel, patience=patience)
        self._patience = patience
        self._tasks = asyncio.TaskGroup()
        self._connection: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        self._connection = self._tasks.create_task(self._stream.run())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._connection is not None:
            self._connection.cancel()
        await self._tasks.__aexit__(kind, error, traceback)

    async def run(
        self,
        container_id: str,
        commands: Sequence[PlannedCommand],
        *,
        yield_time: timedelta | None = None,
        on_delta: OnDelta = lambda *_: None,
    ) -> AsyncGenerator[CommandResult, None]:
        """Runs commands at the same time; yields the result of each as soon as it ends.

        After `yield_time` those that still run are yielded as `still_running`, and go on. A
        command whose execution id was used before is not run again: its output comes from the
        beginning, its outcome as it was. Iterate it under `contextlib.aclosing`: leaving early
        stops the watching, not the commands.

        Errors: `ContainerGone`, `AlreadyFollowed`; `RuntimeUnavailable` when it stays away.
        """
        if any(self._stream.get(command.execution_id) for command in commands):
            raise AlreadyFollowed("an execution is followed by another call of this process")
        followers = [Follower(container_id, command, on_delta) for command in commands]
        try:
            for follower in followers:
                self._stream.add(follower)
            async with aclosing(self._results(followers, yield_time)) as results:
                async for result in results:
                    yield result
        finally:
            for follower in followers:
                self._stream.remove(follower)

    async def cancel(self, execution_ids: Iterable[str]) -> None:
        """Ends commands with all their children; answers when they have ended.

        Idempotent; ids that the runtime does not know are passed over. Those that are followed
        here yield their result as ever. Errors: `RuntimeUnavailable`.
        """
        failures: list[WorkroomError] = []
        try:
            async with (
                asyncio.timeout((KILL_GRACE + END_TIME).total_seconds()),
                asyncio.TaskGroup() as tasks,
            ):
                for execution_id in set(execution_ids):
                    tasks.create_task(self._cancel(execution_id, failures))
        except TimeoutError as error:
            raise RuntimeUnavailable("the runtime did not end the commands in time") from error
        if failures:
            raise failures[0]

    async def _cancel(self, execution_id: str, failures: list[WorkroomError]) -> None:
        follower = self._stream.get(execution_id)
        if follower is not None:
            self._stream.cancel(follower)
            await asyncio.wait([follower.ended])
            return
        try:
            request = pb.CancelExecutionRequest(execution_id=execution_id)
            await self._stub.CancelExecution(request)
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.NOT_FOUND:
                failures.append(container_error(from_rpc_error(error)))

    async def _results(
        self, followers: Sequence[Follower], yield_time: timedelta | None
    ) -> AsyncGenerator[CommandResult, None]:
        clock = asyncio.get_running_loop().time
        begin = clock()
        yield_at = None if yield_time is None else begin + yield_time.total_seconds()
        margin = (KILL_GRACE + END_TIME + self._patience).total_seconds()
        overdue = {f: begin + f.command.timeout.total_seconds() + margin for f in followers}
        pending = {follower.ended: follower for follower in followers}
        while pending and (yield_at is None or clock() < yield_at):
            until = min(overdue[follower] for follower in pending.values())
            wait = min(until, until if yield_at is None else yield_at) - clock()
            done, _ = await asyncio.wait(
                pending, timeout=max(wait, 0), return_when=asyncio.FIRST_COMPLETED
            )
            for future in done:
                del pending[future]
                yield future.result()
            for follower in pending.values():
                if clock() >= overdue[follower]:
                    self._stream.cancel(follower)
                    follower.give_up("its end did not become known in time; it was called off")
        for follower in pending.values():
            yield await self._unfinished(follower)

    async def _unfinished(self, follower: Follower) -> CommandResult:
        """What a yielding call says of a command, once the runtime has accepted it."""
        with suppress(TimeoutError):
            async with asyncio.timeout((ACCEPT_TIME + self._patience).total_seconds()):
                await follower.accepted.wait()
        if follower.ended.done():
            return follower.ended.result()
        return follower.snapshot()
