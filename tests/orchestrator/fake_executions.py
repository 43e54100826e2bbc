"""Owns the commands of the runtime's stand-in: local processes, their spools and outcomes."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Mapping
from pathlib import Path

from workroom.runtime.v1 import executions_pb2 as pb

CHUNK_BYTES = 64 * 1024
STDOUT = pb.OUTPUT_STREAM_STDOUT
STDERR = pb.OUTPUT_STREAM_STDERR


class Spool:
    """The first and the last half of a stream, within `limit_bytes`."""

    def __init__(self, limit_bytes: int) -> None:
        self.total = 0
        self._half = limit_bytes // 2
        self._head = bytearray()
        self._tail = bytearray()

    def append(self, data: bytes) -> None:
        self.total += len(data)
        room = self._half - len(self._head)
        self._head += data[:room]
        self._tail += data[room:]
        del self._tail[: max(0, len(self._tail) - self._half)]

    @property
    def gap(self) -> tuple[int, int]:
        """Offset and length of what is not kept."""
        return len(self._head), self.total - len(self._head) - len(self._tail)

    def read(self, offset: int, limit: int) -> bytes:
        """Bytes from `offset` on, which is not in the gap."""
        if offset < len(self._head):
            return bytes(self._head[offset : offset + limit])
        start = offset - (self.total - len(self._tail))
        return bytes(self._tail[start : start + limit])


class FakeExecution:
    """One command: a local process in the directory that stands for its container."""

    def __init__(
        self, request: pb.StartExecutionRequest, root: Path, variables: Mapping[str, str]
    ) -> None:
        self.request = request
        self.outcome: pb.Outcome | None = None
        limit = request.spool.bytes_per_stream or 4 * 1024 * 1024
        self.spools: dict[int, Spool] = {STDOUT: Spool(limit), STDERR: Spool(limit)}
        self.changed = asyncio.Event()
        self._root = root
        self._variables = variables
        self._reason: str | None = None
        self._stop = asyncio.Event()
        self._stdin: asyncio.Queue[bytes] = asyncio.Queue()

    def cancel(self) -> None:
        self._reason = self._reason or "cancelled"
        self._stop.set()

    def feed(self, data: bytes) -> None:
        """Standard input, ended after it."""
        self._stdin.put_nowait(data)

    def message(self) -> pb.Execution:
        execution = pb.Execution(
            id=self.request.execution_id,
            container_id=self.request.container_id,
            command=self.request.command,
            state=pb.Execution.STATE_ENDED if self.outcome else pb.Execution.STATE_RUNNING,
            outcome=self.outcome,
        )
        for stream, totals in ((STDOUT, execution.stdout), (STDERR, execution.stderr)):
            totals.total_bytes = self.spools[stream].total
            totals.gap_offset, totals.gap_bytes = self.spools[stream].gap
        return execution

    async def run(self) -> None:
        """Runs the command to its end; its outcome is there afterwards, come what may."""
        try:
            self.outcome = await self._run()
        except OSError as error:
            failed = pb.StartFailed(errno=error.errno or 0, message=str(error))
            self.outcome = pb.Outcome(start_failed=failed)
        finally:
            if self.outcome is None:
                self.outcome = pb.Outcome(container_lost=pb.ContainerLost(message="runtime gone"))
            self._notify()

    async def _run(self) -> pb.Outcome:
        command = self.request.command
        here = str(self._root / "workspace")
        words = [word.replace("/workspace", here) for word in command.argv.args]
        if not words:
            words = ["bash", "-c", command.script.replace("/workspace", here)]
        process = await asyncio.create_subprocess_exec(
            *words,
            cwd=self._root / (command.cwd or "/workspace").lstrip("/"),
            env={"PATH": os.environ["PATH"], "HOME": here, "LANG": "C.UTF-8", **self._variables},
            stdin=asyncio.subprocess.PIPE if command.open_stdin else asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        try:
            async with asyncio.TaskGroup() as tasks:
                reading = [
                    tasks.create_task(self._drain(process.stdout, STDOUT)),
                    tasks.create_task(self._drain(process.stderr, STDERR)),
                ]
                helpers = [tasks.create_task(self._feed(process))]
                helpers.append(tasks.create_task(self._limit(process)))
                code = await process.wait()
                await asyncio.wait(reading, timeout=0.5)
                for task in [*helpers, *reading]:
                    task.cancel()
        finally:
            _kill(process, signal.SIGKILL)
        if self._reason == "timed out":
            return pb.Outcome(timed_out=pb.TimedOut())
        if self._reason == "cancelled":
            return pb.Outcome(cancelled=pb.Cancelled())
        if code < 0:
            return pb.Outcome(signalled=pb.Signalled(signal=-code))
        return pb.Outcome(exited=pb.Exited(code=code))

    async def _drain(self, pipe: asyncio.StreamReader | None, stream: int) -> None:
        assert pipe is not None
        while data := await pipe.read(CHUNK_BYTES):
            self.spools[stream].append(data)
            self._notify()

    async def _feed(self, process: asyncio.subprocess.Process) -> None:
        if process.stdin is not None:
            process.stdin.write(await self._stdin.get())
            with contextlib.suppress(ConnectionError):
                await process.stdin.drain()
            process.stdin.close()

    async def _limit(self, process: asyncio.subprocess.Process) -> None:
        timeout = None
        if self.request.HasField("timeout"):
            timeout = self.request.timeout.ToTimedelta().total_seconds()
        try:
            async with asyncio.timeout(timeout):
                await self._stop.wait()
        except TimeoutError:
            self._reason = "timed out"
        _kill(process, signal.SIGTERM)
        await asyncio.sleep(self.request.kill_grace.ToTimedelta().total_seconds() or 2)
        _kill(process, signal.SIGKILL)

    def _notify(self) -> None:
        changed, self.changed = self.changed, asyncio.Event()
        changed.set()


class Watch:
    """Sends one execution's output as far as credit goes, then its end."""

    def __init__(self, execution: FakeExecution, offsets: tuple[int, int], credit: int) -> None:
        self._execution = execution
        self._offsets: dict[int, int] = {STDOUT: offsets[0], STDERR: offsets[1]}
        self._credit = credit or 1024 * 1024
        self._credited = asyncio.Event()

    def add_credit(self, count: int) -> None:
        self._credit += count
        self._credited.set()

    async def next(self) -> pb.StreamExecutionsResponse:
        """The next answer; the last one has `ended`."""
        execution = self._execution
        while True:
            changed = execution.changed
            self._credited.clear()
            ended = execution.outcome is not None
            answer = pb.StreamExecutionsResponse(execution_id=execution.request.execution_id)
            if self._advance(answer):
                return answer
            behind = any(execution.spools[s].total > at for s, at in self._offsets.items())
            if ended and not behind:
                answer.ended.CopyFrom(execution.message())
                return answer
            await (self._credited if behind else changed).wait()

    def _advance(self, answer: pb.StreamExecutionsResponse) -> bool:
        for stream in (STDOUT, STDERR):
            offset = self._offsets[stream]
            spool = self._execution.spools[stream]
            begin, length = spool.gap
            if length and begin <= offset < begin + length:
                left = begin + length - offset
                answer.gap.CopyFrom(pb.OutputGap(stream=stream, offset=offset, length=left))
                self._offsets[stream] += left
                return True
            data = spool.read(offset, min(CHUNK_BYTES, self._credit))
            if data:
                answer.output.CopyFrom(pb.OutputChunk(stream=stream, offset=offset, data=data))
                self._offsets[stream] += len(data)
                self._credit -= len(data)
                return True
        return False


def _kill(process: asyncio.subprocess.Process, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)
