"""Owns what is known of one command while its output comes in: offsets, kept text, its end.

Knows the runtime's messages; opens no connection and waits for nothing.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeAlias

import structlog

from orchestrator.records import Ended, Exited, Outcome, Signalled
from orchestrator.runtime_errors import ContainerGone, RuntimeUnavailable, cure
from orchestrator.tools.deltas import Thinner
from orchestrator.tools.output import BoundedOutput, BoundedText
from orchestrator.tools.results import CommandResult
from workroom.errors import WorkroomError
from workroom.runtime.v1 import executions_pb2 as pb

log = structlog.get_logger(__name__)

CREDIT_BYTES = 512 * 1024
"""How much output of one command may be under way."""
KILL_GRACE = timedelta(seconds=2)

OnDelta: TypeAlias = Callable[[str, bool, str, bool], None]
"""Called with item id, is_stderr, text, after_gap; on the event loop, and must not block."""


@dataclass(frozen=True, slots=True)
class PlannedCommand:
    """A command that is to run, or does already if its `execution_id` was used before."""

    item_id: str
    execution_id: str
    script: str
    cwd: str
    timeout: timedelta
    max_output_chars: int
    as_root: bool = False


class _Stream:
    """One of a command's two streams."""

    def __init__(self, text: BoundedText, deltas: Thinner) -> None:
        self.offset = 0
        self._text = text
        self._deltas = deltas

    def take(self, offset: int, data: bytes) -> None:
        """Bytes at `offset`; those that came before are dropped, missing ones are a gap."""
        self.skip_to(offset)
        fresh = data[self.offset - offset :] if offset < self.offset else data
        self.offset += len(fresh)
        self._deltas.feed(self._text.feed(fresh))

    def skip_to(self, offset: int) -> None:
        if offset > self.offset:
            self._deltas.feed(self._text.skip(offset - self.offset))
            self._deltas.gap()
            self.offset = offset

    def end(self) -> None:
        self._deltas.feed(self._text.feed(b"", final=True))
        self._deltas.close()

    def pause(self) -> None:
        self._deltas.close()


class Follower:
    """One command, followed from its start to its end.

    `ended` holds the result, or the error that keeps it from being known. `accepted` is set once
    the runtime has taken the command, or never will.
    """

    def __init__(self, container_id: str, command: PlannedCommand, on_delta: OnDelta) -> None:
        self.command = command
        self.ended: asyncio.Future[CommandResult] = asyncio.get_running_loop().create_future()
        self.accepted = asyncio.Event()
        self.cancelling = False
        self.attempts = 0
        self._container_id = container_id
        self._on_delta = on_delta
        self._output = BoundedOutput(command.max_output_chars)
        self._streams: dict[int, _Stream] = {
            pb.OUTPUT_STREAM_STDOUT: _Stream(self._output.stdout, self._thinner(False)),
            pb.OUTPUT_STREAM_STDERR: _Stream(self._output.stderr, self._thinner(True)),
        }
        self._started = False
        self._since = time.monotonic()

    @property
    def execution_id(self) -> str:
        return self.command.execution_id

    def opening(self) -> list[pb.StreamExecutionsRequest]:
        """What to say on a new connection: start it, or go on where its output was left."""
        request = pb.StreamExecutionsRequest(execution_id=self.execution_id)
        if self._started:
            request.watch.stdout_offset = self._streams[pb.OUTPUT_STREAM_STDOUT].offset
            request.watch.stderr_offset = self._streams[pb.OUTPUT_STREAM_STDERR].offset
            request.watch.initial_credit_bytes = CREDIT_BYTES
        else:
            request.start.start.CopyFrom(self._start())
            request.start.initial_credit_bytes = CREDIT_BYTES
        return [request, self.cancellation()] if self.cancelling else [request]

    def cancellation(self) -> pb.StreamExecutionsRequest:
        cancel = pb.CancelExecutionRequest(execution_id=self.execution_id)
        return pb.StreamExecutionsRequest(execution_id=self.execution_id, cancel=cancel)

    def take(self, answer: pb.StreamExecutionsResponse) -> int:
        """Takes an answer; returns how many bytes of output were in it.

        What comes before `started` belongs to an earlier watch of the same execution. Errors: a
        `WorkroomError` that asks for the opening to be said again, later.
        """
        kind = answer.WhichOneof("event")
        if kind == "failed":
            self._take_failure(answer.failed)
        elif kind == "started":
            self._started = True
            self.accepted.set()
        elif not self._started or self.ended.done():
            return 0
        elif kind == "output":
            self._streams[answer.output.stream].take(answer.output.offset, answer.output.data)
            return len(answer.output.data)
        elif kind == "gap":
            self._streams[answer.gap.stream].skip_to(answer.gap.offset + answer.gap.length)
        elif kind == "ended":
            self._take_end(answer.ended)
        return 0

    def snapshot(self) -> CommandResult:
        """What is known of a command that still runs."""
        for stream in self._streams.values():
            stream.pause()
        duration = timedelta(seconds=time.monotonic() - self._since)
        return self._result(None, duration)

    def fail(self, error: BaseException) -> None:
        """The result will not be known."""
        self._finish()
        if not self.ended.done():
            self.ended.set_exception(error)
            self.ended.exception()  # whoever awaits it still gets it; nobody has to

    def give_up(self, words: str) -> None:
        """The command counts as ended in this way."""
        self._finish()
        if not self.ended.done():
            self.ended.set_result(self._result(Ended(words), None))

    def _take_failure(self, failed: pb.RequestFailed) -> None:
        if failed.reason in ("CONTAINER_NOT_FOUND", "CONTAINER_NOT_ACTIVE") and not self._started:
            self.fail(ContainerGone(self._container_id, failed.message))
        elif failed.code == RuntimeUnavailable.code.value[0] and self.attempts < 5:
            self.attempts += 1
            raise RuntimeUnavailable(failed.message)
        elif self._started:
            self.give_up(f"container lost: {failed.message}")
        else:
            self.give_up(f"not started: {failed.message}{cure(failed.reason)}")

    def _take_end(self, execution: pb.Execution) -> None:
        for stream, totals in ((1, execution.stdout), (2, execution.stderr)):
            missing = totals.total_bytes - self._streams[stream].offset
            if missing > 0:
                log.warning("output is missing", execution_id=self.execution_id, bytes=missing)
                self._streams[stream].skip_to(totals.total_bytes)
        self._finish()
        duration = None
        if execution.HasField("start_time") and execution.HasField("end_time"):
            start = execution.start_time.ToDatetime()
            duration = max(execution.end_time.ToDatetime() - start, timedelta())
        if not self.ended.done():
            outcome = outcome_of(execution.outcome, self.command.timeout)
            held = execution.outcome.output_held
            self.ended.set_result(self._result(outcome, duration, output_held=held))

    def _finish(self) -> None:
        self.accepted.set()
        if not self.ended.done():
            for stream in self._streams.values():
                stream.end()

    def _result(
        self, outcome: Outcome | None, duration: timedelta | None, *, output_held: bool = False
    ) -> CommandResult:
        stdout, stderr = self._output.render()
        return CommandResult(
            item_id=self.command.item_id,
            execution_id=self.execution_id,
            outcome=outcome,
            stdout=stdout,
            stderr=stderr,
            duration=duration,
            still_running=outcome is None,
            stdout_bytes=self._streams[pb.OUTPUT_STREAM_STDOUT].offset,
            stderr_bytes=self._streams[pb.OUTPUT_STREAM_STDERR].offset,
            output_held=output_held,
        )

    def _start(self) -> pb.StartExecutionRequest:
        user = pb.Command.USER_ROOT if self.command.as_root else pb.Command.USER_DEFAULT
        start = pb.StartExecutionRequest(
            container_id=self._container_id,
            execution_id=self.execution_id,
            command=pb.Command(script=self.command.script, cwd=self.command.cwd, user=user),
        )
        start.timeout.FromTimedelta(self.command.timeout)
        start.kill_grace.FromTimedelta(KILL_GRACE)
        return start

    def _thinner(self, is_stderr: bool) -> Thinner:
        def emit(text: str, after_gap: bool) -> None:
            try:
                self._on_delta(self.command.item_id, is_stderr, text, after_gap)
            except Exception as error:
                self.fail(error)

        return Thinner(emit)


def outcome_of(outcome: pb.Outcome, timeout: timedelta) -> Outcome:
    """The runtime's outcome; what it did not say is never taken for success."""
    match outcome.WhichOneof("kind"):
        case "exited":
            return Exited(outcome.exited.code)
        case "signalled":
            return Signalled(outcome.signalled.signal)
        case "timed_out":
            return Ended(f"timed out after {timeout.total_seconds():g} s and was ended")
        case "cancelled":
            return Ended("cancelled")
        case "out_of_memory":
            return Ended("ended by the kernel: the container ran out of memory")
        case "start_failed":
            return Ended(f"not started: {outcome.start_failed.message}")
        case "container_lost":
            return Ended(f"container lost: {outcome.container_lost.message}")
    return Ended("ended, but the runtime did not say how")


def as_error(error: BaseException) -> WorkroomError:
    """The error to give to those who wait when the stream itself broke."""
    if isinstance(error, WorkroomError):
        return error
    return RuntimeUnavailable(f"the container runtime's stream broke: {error}")
