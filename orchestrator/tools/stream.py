"""Owns the one connection that carries every command's output, and brings it back when it breaks.

Knows followers by what they say and take; judges no outcome.
"""

import asyncio
import time
from collections import deque
from contextlib import suppress
from datetime import timedelta
from typing import TypeAlias

import grpc
import structlog

from orchestrator.runtime_errors import RuntimeUnavailable
from orchestrator.tools.followers import CREDIT_BYTES, Follower
from workroom.errors import WorkroomError
from workroom.rpc.status import from_rpc_error
from workroom.runtime.v1 import executions_pb2 as pb
from workroom.runtime.v1 import executions_pb2_grpc as rpc

log = structlog.get_logger(__name__)

FIRST_PAUSE = 0.05
MOST_PAUSE = 2.0
"""Seconds between attempts to connect."""

SETTLED = 10.0
"""Seconds after which a connection counts as one that had been made, even a silent one."""

BURST_BYTES = 16 * 1024 * 1024
BYTES_PER_SECOND = 64 * 1024 * 1024
"""How much of one command's output is read at once, and then per second: a command that writes
faster falls behind in its spool instead of taking the whole process."""


_Call: TypeAlias = (
    "grpc.aio.StreamStreamCall[pb.StreamExecutionsRequest, pb.StreamExecutionsResponse]"
)


class Outbox:
    """Requests that wait for one connection, in order; credit is added up."""

    def __init__(self) -> None:
        self._waiting: deque[pb.StreamExecutionsRequest | str] = deque()
        self._credit: dict[str, int] = {}
        self._filled = asyncio.Event()

    def send(self, request: pb.StreamExecutionsRequest) -> None:
        self._waiting.append(request)
        self._filled.set()

    def credit(self, execution_id: str, count: int) -> None:
        if execution_id not in self._credit:
            self._waiting.append(execution_id)
        self._credit[execution_id] = self._credit.get(execution_id, 0) + count
        self._filled.set()

    async def next(self) -> pb.StreamExecutionsRequest:
        """The next request, once there is one."""
        while not self._waiting:
            self._filled.clear()
            await self._filled.wait()
        entry = self._waiting.popleft()
        if isinstance(entry, str):
            credit = pb.StreamExecutionsRequest.Credit(bytes=self._credit.pop(entry))
            return pb.StreamExecutionsRequest(execution_id=entry, credit=credit)
        return entry


class Pacer:
    """Says when more output of one command may be asked for."""

    def __init__(self) -> None:
        self._owed = 0
        self._available = float(BURST_BYTES)
        self._at = time.monotonic()

    def consumed(self, count: int) -> tuple[int, float]:
        """Bytes to ask for now, if any, and after how many seconds."""
        self._owed += count
        if self._owed < CREDIT_BYTES // 4:
            return 0, 0.0
        now = time.monotonic()
        gained = (now - self._at) * BYTES_PER_SECOND
        self._available = min(self._available + gained, BURST_BYTES) - self._owed
        self._at = now
        asked, self._owed = self._owed, 0
        return asked, max(0.0, -self._available / BYTES_PER_SECOND)


class ExecutionStream:
    """Any number of followers over one stream of the runtime.

    The connection is made when the first follower comes. One that breaks is made anew, as long as
    there are followers, and each goes on at its offsets; when there has been none for `patience`
    they get `RuntimeUnavailable`.
    """

    def __init__(self, channel: grpc.aio.Channel, *, patience: timedelta) -> None:
        self._stub = rpc.ExecutionServiceStub(channel)
        self._patience = patience.total_seconds()
        self._followers: dict[str, tuple[Follower, Pacer]] = {}
        self._outbox: Outbox | None = None
        self._wanted = asyncio.Event()
        self._answered = False

    def get(self, execution_id: str) -> Follower | None:
        entry = self._followers.get(execution_id)
        return entry[0] if entry else None

    def add(self, follower: Follower) -> None:
        """Starts or re-attaches to the follower's command."""
        self._followers[follower.execution_id] = follower, Pacer()
        self._wanted.set()
        self._open(follower)

    def cancel(self, follower: Follower) -> None:
        """Asks for the command's end; its result comes as ever."""
        follower.cancelling = True
        if self._outbox is not None:
            self._outbox.send(follower.cancellation())

    def remove(self, follower: Follower) -> None:
        """Stops following; the command goes on."""
        if self.get(follower.execution_id) is not follower:
            return
        del self._followers[follower.execution_id]
        if not self._followers:
            self._wanted.clear()
        if self._outbox is not None and not follower.ended.done():
            unwatch = pb.StreamExecutionsRequest.Unwatch()
            self._outbox.send(
                pb.StreamExecutionsRequest(execution_id=follower.execution_id, unwatch=unwatch)
            )

    async def run(self) -> None:
        """Keeps the connection, until cancelled."""
        pause, alone_since = FIRST_PAUSE, None
        while True:
            if not self._followers:
                alone_since = None
            await self._wanted.wait()
            self._answered = False
            began = time.monotonic()
            error = await self._connect()
            now = time.monotonic()
            if self._answered or now - began > SETTLED:
                pause, alone_since = FIRST_PAUSE, None
            alone_since = alone_since if alone_since is not None else now
            if self._followers:
                log.warning("runtime stream broke", reason=error.reason, detail=error.message)
            if now - alone_since >= self._patience:
                self._fail_all(error)
            await asyncio.sleep(pause)
            pause = min(pause * 2, MOST_PAUSE)

    async def _connect(self) -> WorkroomError:
        """One connection, to its end; returns why it ended."""
        outbox = self._outbox = Outbox()
        for follower, _ in list(self._followers.values()):
            self._open(follower)
        call = self._stub.StreamExecutions()
        try:
            async with asyncio.TaskGroup() as tasks:
                writing = tasks.create_task(_write(call, outbox))
                try:
                    return await self._read(call, outbox)
                finally:
                    writing.cancel()
        finally:
            self._outbox = None
            call.cancel()

    async def _read(self, call: _Call, outbox: Outbox) -> WorkroomError:
        try:
            while isinstance(answer := await call.read(), pb.StreamExecutionsResponse):
                self._answered = True
                self._take(answer, outbox)
        except grpc.aio.AioRpcError as failure:
            return from_rpc_error(failure)
        return RuntimeUnavailable("the runtime ended the stream")

    def _take(self, answer: pb.StreamExecutionsResponse, outbox: Outbox) -> None:
        entry = self._followers.get(answer.execution_id)
        if entry is None:
            return
        follower, pacer = entry
        loop = asyncio.get_running_loop()
        try:
            consumed = follower.take(answer)
        except WorkroomError as again:
            log.warning("runtime asks to try again", detail=again.message)
            loop.call_later(0.1 * 2**follower.attempts, self._reopen, follower, outbox)
            return
        except Exception as error:
            log.exception("cannot follow execution", execution_id=answer.execution_id)
            follower.fail(error)
            consumed = 0
        if follower.ended.done():
            self.remove(follower)
        elif consumed:
            count, delay = pacer.consumed(consumed)
            if count and delay:
                loop.call_later(delay, outbox.credit, follower.execution_id, count)
            elif count:
                outbox.credit(follower.execution_id, count)

    def _open(self, follower: Follower) -> None:
        if self._outbox is not None:
            for request in follower.opening():
                self._outbox.send(request)

    def _reopen(self, follower: Follower, outbox: Outbox) -> None:
        if self._outbox is outbox and self.get(follower.execution_id) is follower:
            self._open(follower)

    def _fail_all(self, error: WorkroomError) -> None:
        for follower, _ in list(self._followers.values()):
            unavailable = RuntimeUnavailable(
                f"the container runtime has not answered for {self._patience:g} s: {error.message}",
                cause=error.reason,
            )
            follower.fail(unavailable)
            self.remove(follower)


async def _write(call: _Call, outbox: Outbox) -> None:
    """Sends what waits, one at a time; a broken connection is the reader's to tell."""
    with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
        while True:
            await call.write(await outbox.next())
