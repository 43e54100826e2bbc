"""Owns one multiplexed stream: requests of many executions in, their output and ends out.

Fair: executions with output and credit take turns, a chunk each. A request that waits (for a
start, for a command to read) holds up only what was asked of the same execution.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from types import TracebackType
from typing import Self

import structlog

from container_runtime import limits
from container_runtime.errors import StdinFull
from container_runtime.execution import CHUNK_BYTES, Chunk, Execution, MissingRange, Watch
from container_runtime.records import ExecutionRecord
from container_runtime.runtime import Runtime
from container_runtime.servicers import requests
from container_runtime.servicers.messages import (
    execution_message,
    failure_message,
    fill_chunk,
    gap_message,
)
from container_runtime.stdin import write_stdin
from workroom.errors import Internal, InvalidField, WorkroomError
from workroom.rpc.drain import Drain
from workroom.runtime.v1 import executions_pb2 as pb

log = structlog.get_logger(__name__)

IN_FLIGHT = 1024
"""Requests that are being answered at a time; more wait in the connection."""

STDIN_WAITING = 8
"""Writes to one execution's standard input that may wait for earlier ones."""

Lane = tuple[str, str]


class _Watching:
    """A watch and its credit."""

    __slots__ = ("credit", "queued", "tell", "watch")

    def __init__(self, watch: Watch, credit: int) -> None:
        self.watch, self.credit, self.queued = watch, credit, False
        self.tell: Callable[[], None] = lambda: None


class Multiplex:
    """Serves one stream; an async context manager around `next`."""

    def __init__(
        self,
        runtime: Runtime,
        drain: Drain,
        incoming: AsyncIterator[pb.StreamExecutionsRequest],
    ) -> None:
        self._runtime = runtime
        self._drain = drain
        self._incoming = incoming
        self._tasks = asyncio.TaskGroup()
        self._reader: asyncio.Task[None] | None = None
        self._slots = asyncio.Semaphore(IN_FLIGHT)
        self._lanes: dict[Lane, deque[pb.StreamExecutionsRequest]] = {}
        self._starting: dict[str, asyncio.Event] = {}
        self._answers: deque[pb.StreamExecutionsResponse] = deque()
        self._watchings: dict[str, _Watching] = {}
        self._ready: deque[_Watching] = deque()
        self._news = asyncio.Event()
        self._heard_all = False

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        self._reader = self._tasks.create_task(self._read())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for execution_id in tuple(self._watchings):
            self._unwatch(execution_id)
        try:
            await self._tasks.__aexit__(kind, error, trace)
        except BaseExceptionGroup as group:
            # The body was cancelled by a task's failure, or failed itself: either says why.
            raise group.exceptions[0] from None

    # Out

    async def next(self) -> pb.StreamExecutionsResponse | None:
        """The next message to send; `None` when nothing can follow."""
        while True:
            self._drain.check()
            message = self._pop()
            if message is not None:
                return message
            if self._heard_all and not self._lanes and not self._watchings:
                return None
            self._news.clear()
            async with self._drain.interrupting():
                await self._news.wait()

    def _pop(self) -> pb.StreamExecutionsResponse | None:
        if self._answers:
            return self._answers.popleft()
        while self._ready:
            watching = self._ready.popleft()
            watching.queued = False
            message = self._step(watching)
            if message is not None:
                return message
        return None

    def _step(self, watching: _Watching) -> pb.StreamExecutionsResponse | None:
        execution_id = watching.watch.execution.id
        found = watching.watch.next(min(CHUNK_BYTES, watching.credit))
        match found:
            case None:
                if self._heard_all and watching.credit == 0:
                    self._unwatch(execution_id)  # nobody can give it credit any more
                return None
            case ExecutionRecord():
                self._unwatch(execution_id)
                return pb.StreamExecutionsResponse(
                    execution_id=execution_id, ended=execution_message(found)
                )
            case MissingRange():
                self._mark(watching)
                return pb.StreamExecutionsResponse(
                    execution_id=execution_id, gap=gap_message(found)
                )
            case Chunk():
                watching.credit -= len(found.data)
                self._mark(watching)
                message = pb.StreamExecutionsResponse(execution_id=execution_id)
                fill_chunk(message.output, found)
                return message

    def _mark(self, watching: _Watching) -> None:
        if not watching.queued:
            watching.queued = True
            self._ready.append(watching)
            self._news.set()

    def _answer(self, message: pb.StreamExecutionsResponse) -> None:
        self._answers.append(message)
        self._news.set()

    # In

    async def _read(self) -> None:
        async for request in self._incoming:
            action = request.WhichOneof("action")
            if not request.execution_id:
                raise InvalidField("execution_id", "every request must name its execution")
            if action is None:
                raise InvalidField("action", "one is required")
            await self._slots.acquire()
            self._queue(request, action)
        self._heard_all = True
        for watching in self._watchings.values():
            self._mark(watching)
        self._news.set()

    def _queue(self, request: pb.StreamExecutionsRequest, action: str) -> None:
        lane = (request.execution_id, action if action in ("stdin", "cancel") else "")
        if action == "start":
            self._starting[request.execution_id] = asyncio.Event()
        waiting = self._lanes.get(lane)
        if waiting is None:
            self._lanes[lane] = deque([request])
            self._tasks.create_task(self._work(lane))
        elif action == "stdin" and len(waiting) >= STDIN_WAITING:
            self._fail(request.execution_id, _too_eager(request))
            self._slots.release()
        else:
            waiting.append(request)

    async def _work(self, lane: Lane) -> None:
        """Serves what is asked of one execution, in order."""
        waiting = self._lanes[lane]
        while waiting:
            request = waiting[0]
            try:
                await self._serve(request)
            except WorkroomError as error:
                self._fail(request.execution_id, error)
            except Exception:
                log.exception("request failed", execution_id=request.execution_id)
                self._fail(request.execution_id, Internal("internal error"))
            finally:
                waiting.popleft()
                self._slots.release()
        del self._lanes[lane]
        self._news.set()

    async def _serve(self, request: pb.StreamExecutionsRequest) -> None:
        execution_id = request.execution_id
        executions = self._runtime.executions
        action = request.WhichOneof("action")
        starting = self._starting.get(execution_id)
        if action in ("stdin", "cancel") and starting is not None:
            await starting.wait()
        match action:
            case "start":
                await self._start(request)
            case "watch":
                await self._watch(execution_id, request.watch)
            case "credit":
                self._credit(execution_id, request.credit.bytes)
            case "unwatch":
                self._unwatch(execution_id)
            case "stdin":
                await self._stdin(request)
            case "signal":
                _same(request.signal.execution_id, execution_id, "signal")
                number = requests.signal_number(request.signal.signal)
                await executions.signal(execution_id, number)
            case "cancel":
                _same(request.cancel.execution_id, execution_id, "cancel")
                await executions.cancel(execution_id)
            case "resize":
                _same(request.resize.execution_id, execution_id, "resize")
                size = requests.terminal(request.resize.terminal, "resize.")
                await executions.resize(execution_id, size)

    async def _start(self, request: pb.StreamExecutionsRequest) -> None:
        start = request.start
        try:
            _same(start.start.execution_id, request.execution_id, "start.start")
            start.start.execution_id = request.execution_id
            credit = _initial_credit(start.initial_credit_bytes)
            command = requests.execution_request(start.start, field="start.start.")
            execution = await self._runtime.start(command)
            self._answer(
                pb.StreamExecutionsResponse(
                    execution_id=execution.id, started=execution_message(execution.record())
                )
            )
            self._begin(execution, Watch(execution), credit)
        finally:
            self._starting.pop(request.execution_id).set()

    async def _watch(self, execution_id: str, request: pb.StreamExecutionsRequest.Watch) -> None:
        stdout = requests.offset("watch.stdout_offset", request.stdout_offset)
        stderr = requests.offset("watch.stderr_offset", request.stderr_offset)
        credit = _initial_credit(request.initial_credit_bytes)
        execution = await self._runtime.executions.get(execution_id)
        self._begin(execution, Watch(execution, stdout, stderr), credit)

    def _begin(self, execution: Execution, watch: Watch, credit: int) -> None:
        self._unwatch(execution.id)
        watching = _Watching(watch, credit)
        watching.tell = lambda: self._mark(watching)
        self._watchings[execution.id] = watching
        execution.listen(watching.tell)
        self._mark(watching)

    def _unwatch(self, execution_id: str) -> None:
        watching = self._watchings.pop(execution_id, None)
        if watching is None:
            return
        watching.watch.execution.unlisten(watching.tell)
        watching.watch.close()
        if watching.queued:
            self._ready.remove(watching)

    def _credit(self, execution_id: str, more: int) -> None:
        if more <= 0:
            raise InvalidField("credit.bytes", f"{more} is not more than nothing")
        watching = self._watchings.get(execution_id)
        if watching is not None:
            watching.credit += more
            self._mark(watching)

    async def _stdin(self, request: pb.StreamExecutionsRequest) -> None:
        stdin = request.stdin
        _same(stdin.execution_id, request.execution_id, "stdin")
        offset = requests.offset("stdin.offset", stdin.offset)
        requests.stdin_data("stdin.data", stdin.data)
        accepted = await write_stdin(
            self._runtime.executions, request.execution_id, offset, stdin.data, stdin.end
        )
        self._answer(
            pb.StreamExecutionsResponse(
                execution_id=request.execution_id,
                stdin_accepted=pb.WriteStdinResponse(accepted_offset=accepted),
            )
        )

    def _fail(self, execution_id: str, error: WorkroomError) -> None:
        self._answer(
            pb.StreamExecutionsResponse(execution_id=execution_id, failed=failure_message(error))
        )


def _same(given: str, execution_id: str, field: str) -> None:
    if given not in ("", execution_id):
        raise InvalidField(f"{field}.execution_id", f"it must be empty or {execution_id}")


def _initial_credit(asked: int) -> int:
    if asked < 0:
        raise InvalidField("initial_credit_bytes", f"{asked} is negative")
    return asked or limits.CREDIT_BYTES


def _too_eager(request: pb.StreamExecutionsRequest) -> StdinFull:
    return StdinFull(
        f"{STDIN_WAITING} writes to standard input are waiting; send the next when one is accepted",
        execution_id=request.execution_id,
        accepted_offset="0",
    )
