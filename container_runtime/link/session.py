"""The executions of one container and the frames about them; survives connections.

Knows no sockets: it is given a way to send and is told what arrived.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from container_runtime.agent import wire
from container_runtime.link import encoding
from container_runtime.link.errors import ExecutionRepeated, TooManyExecutions
from container_runtime.link.execution import Execution
from container_runtime.model import (
    Ending,
    ExecutionState,
    Offsets,
    Outcome,
    PromptSink,
    Sink,
    Stream,
)

log = structlog.get_logger(__name__)

MAX_RECORDED = 4096
RECORD_ATTEMPTS = 5
OWN_PREFIX = "_"
"""Ids of executions that the link makes for itself; they do not outlive this process."""


@dataclass(frozen=True, slots=True)
class Listed:
    """What the supervisor says of one execution in the handshake."""

    channel: int
    exec_id: str
    state: ExecutionState
    first: Offsets
    total: Offsets
    stdin_received: int
    stdin_taken: int
    stdin_ended: bool

    @classmethod
    def of(cls, channel: int, payload: bytes) -> "Listed":
        """ProtocolError when it is malformed."""
        values = wire.fields(payload, 9)
        exec_id = wire.text(values[0], wire.MAX_ID)
        state = encoding.STATES.get(wire.number(values[1]))
        out_first, out, err_first, err, received, taken = (
            wire.number(value) for value in values[2:8]
        )
        if state is None or not exec_id.isascii() or not exec_id:
            raise wire.ProtocolError("malformed listing")
        return cls(
            channel,
            exec_id.decode(),
            state,
            Offsets(out_first, err_first),
            Offsets(out, err),
            received,
            taken,
            bool(wire.number(values[8], 0, 1)),
        )


class Session:
    """Executions by id and channel, and their pumps into the sink."""

    def __init__(
        self,
        sink: Sink,
        tasks: asyncio.TaskGroup,
        send: Callable[[bytes], None],
        send_later: Callable[[bytes], None],
        name: str,
    ) -> None:
        """`send_later` is for what nobody waits for."""
        self._sink, self._tasks, self._send, self._send_later = sink, tasks, send, send_later
        self._prompt = sink if isinstance(sink, PromptSink) else None
        self._due: dict[Execution, None] = {}
        self._log = log.bind(container_id=name)
        self._by_id: dict[str, Execution] = {}
        self._by_channel: dict[int, Execution] = {}
        self._recorded: dict[int, None] = {}
        self._pumps: set[asyncio.Task[None]] = set()
        self._next_channel = 1
        self._acks: dict[tuple[int, Stream], int] = {}
        self._loop = asyncio.get_running_loop()
        self.boot = b""
        self.lost = False

    def find(self, exec_id: str) -> Execution | None:
        """An execution that is not recorded yet."""
        return self._by_id.get(exec_id)

    def all(self) -> list[Execution]:
        """All that are not recorded yet."""
        return list(self._by_id.values())

    def new(
        self, exec_id: str, encode: Callable[[int], bytes], sink: Sink | None, *, stdin: bool
    ) -> Execution:
        """Make an execution and send its START, which `encode` gives for a channel."""
        channel = self._next_channel
        frame = encode(channel)
        self._next_channel += 1
        execution = Execution(exec_id, channel, sink or self._sink, frame, stdin=stdin)
        self._by_id[exec_id] = self._by_channel[channel] = execution
        self._send(frame)
        return execution

    # Frames

    def arrived(self) -> None:
        """Hand what came, by `frame`, to the sink: at once where that can be, else in a task."""
        due, self._due = self._due, {}
        for execution in due:
            if not execution.pumping and not self._drained_now(execution):
                self._pump(execution)

    def frame(self, kind: int, flag: int, channel: int, offset: int, payload: bytes) -> None:
        """Handle a frame about an execution."""
        execution = self._by_channel.get(channel)
        if execution is None:
            if channel in self._recorded:
                return
            raise wire.ProtocolError("an unknown channel")
        if kind == wire.OUTPUT:
            execution.output(flag, offset, payload)
            if not execution.begun.is_set():
                execution.began()
            self._due[execution] = None
        elif kind == wire.STARTED:
            execution.began()
        elif kind == wire.ENDED:
            execution.end(encoding.outcome(payload))
            self._due[execution] = None
        elif kind == wire.STDIN_TAKEN:
            execution.stdin.take(offset)
        elif kind == wire.STDIN_CLOSED:
            execution.stdin.close()
        elif kind == wire.REFUSED:
            self._refused(execution, payload)
        else:
            raise wire.ProtocolError("out of turn")

    def _refused(self, execution: Execution, payload: bytes) -> None:
        number, message = wire.fields(payload, 2)
        text = wire.text(message, 4096).decode("utf-8", "replace")
        if execution.state is not ExecutionState.STARTING:
            raise wire.ProtocolError("refused what it runs")
        self._drop(execution)
        if wire.number(number, 0, 4095):
            execution.refuse(TooManyExecutions(text))
        else:
            execution.refuse(ExecutionRepeated(text, exec_id=execution.exec_id))

    def _drop(self, execution: Execution) -> None:
        self._by_id.pop(execution.exec_id, None)
        self._by_channel.pop(execution.channel, None)
        self._recorded[execution.channel] = None
        if len(self._recorded) > MAX_RECORDED:
            del self._recorded[next(iter(self._recorded))]

    # The handshake

    def booted(self, boot: bytes) -> None:
        """Learn which life of the supervisor this is; in a new one nothing of the old is left."""
        if self.boot and boot != self.boot:
            self._log.warning("supervisor restarted")
            self.lose()
            self._recorded.clear()
            self._by_channel.clear()
        self.boot = boot

    async def answer(self, listed: dict[int, Listed]) -> list[bytes]:
        """The answers to the supervisor's list, and what it must be sent again."""
        frames = [await self._answer_one(entry) for entry in listed.values()]
        frames.append(wire.control(wire.WELCOME, 0, wire.VERSION))
        for execution in self.all():
            entry = listed.get(execution.channel)
            if entry is not None:
                frames += self._again(execution, entry.stdin_received)
            elif execution.outcome is None:
                if execution.start is None:
                    raise wire.ProtocolError("an execution was left out of the list")
                frames.append(execution.start)
                frames += self._again(execution, 0)
        self._next_channel = max([self._next_channel, *(channel + 1 for channel in listed)])
        return frames

    async def _answer_one(self, entry: Listed) -> bytes:
        execution = self._by_channel.get(entry.channel)
        if execution is not None and execution.exec_id != entry.exec_id:
            raise wire.ProtocolError("a channel changed its execution")
        if execution is None:
            execution = await self._adopt(entry)
        if execution is None:
            return wire.frame(wire.FORGET, entry.channel)
        if entry.state is not ExecutionState.STARTING:
            execution.began()
        if entry.stdin_ended and execution.stdin.end is None:
            execution.stdin.close()
        execution.stdin.take(min(entry.stdin_taken, execution.stdin.sent))
        out, err = execution.taken[Stream.STDOUT], execution.taken[Stream.STDERR]
        for known, first, total in (
            (out, entry.first.stdout, entry.total.stdout),
            (err, entry.first.stderr, entry.total.stderr),
        ):
            if not first <= known <= total:
                raise wire.ProtocolError("the supervisor has lost or invented output")
        return wire.control(wire.RESUME, entry.channel, out, err)

    async def _adopt(self, entry: Listed) -> Execution | None:
        if entry.channel in self._recorded or entry.exec_id.startswith(OWN_PREFIX):
            return None
        if entry.exec_id in self._by_id:
            raise wire.ProtocolError("an execution has two channels")
        offsets = await self._sink.resume(entry.exec_id)
        if offsets is None:
            self._log.warning("unknown execution forgotten", exec_id=entry.exec_id)
            return None
        execution = Execution(entry.exec_id, entry.channel, self._sink, None, stdin=True)
        execution.stdin.adopt(entry.stdin_received, entry.stdin_taken, entry.stdin_ended)
        # A spool that is ahead of an acknowledgement which never arrived is as good; one that
        # is behind what was acknowledged has a gap, and the handshake says so.
        for stream, offset in ((Stream.STDOUT, offsets.stdout), (Stream.STDERR, offsets.stderr)):
            execution.received[stream] = execution.taken[stream] = offset
        self._by_id[entry.exec_id] = self._by_channel[entry.channel] = execution
        return execution

    def _again(self, execution: Execution, received: int) -> list[bytes]:
        stdin = execution.stdin
        frames = [] if execution.cancel is None else [execution.cancel]
        if stdin.closed:
            return frames
        frames += [
            wire.frame(wire.STDIN, execution.channel, offset=offset, payload=piece)
            for offset, piece in stdin.missing(received)
        ]
        if stdin.end is not None:
            frames.append(wire.frame(wire.STDIN_END, execution.channel, offset=stdin.end))
        return frames

    # Into the sink

    def lose(self) -> None:
        """Every execution that has no outcome is lost."""
        for execution in self.all():
            if execution.outcome is None:
                counts = execution.received
                outcome = Outcome(
                    Ending.LOST,
                    message="the container or its supervisor is gone",
                    stdout_bytes=counts[Stream.STDOUT],
                    stderr_bytes=counts[Stream.STDERR],
                )
                execution.end(outcome)
                self._pump(execution)

    def _drained_now(self, execution: Execution) -> bool:
        """Do what `_drain` does, as far as nothing has to be waited for; whether all was done."""
        prompt = self._prompt
        if prompt is None or execution.sink is not prompt or execution.discarding:
            return False
        exec_id = execution.exec_id
        while execution.queue:
            piece = execution.next_piece()
            stream, offset, data = piece
            try:
                done = prompt.output_now(exec_id, stream, offset, data)
            except Exception:
                done = False  # the task meets it again and deals with it
            if not done:
                execution.queue.appendleft(piece)
                return False
            execution.taken[stream] = offset + len(data)
            self._acknowledge(execution.channel, stream, offset + len(data))
        outcome = execution.outcome
        if outcome is not None:
            try:
                if not prompt.ended_now(exec_id, outcome):
                    return False
            except Exception:
                return False
            execution.pumping = True
            self._recorded_end(execution)
        return True

    def _pump(self, execution: Execution) -> None:
        if not execution.pumping:
            execution.pumping = True
            task = self._tasks.create_task(self._drain(execution))
            self._pumps.add(task)
            task.add_done_callback(self._pumps.discard)

    async def _drain(self, execution: Execution) -> None:
        """Hand everything that is queued to the sink, then the outcome, and stop."""
        while execution.queue:
            stream, offset, data = execution.next_piece()
            if not execution.discarding:
                await self._deliver(execution, stream, offset, data)
            execution.taken[stream] = offset + len(data)
            self._acknowledge(execution.channel, stream, offset + len(data))
        execution.pumping = False
        outcome = execution.outcome
        if outcome is not None:
            execution.pumping = True
            await self._record(execution, outcome)

    async def _deliver(
        self, execution: Execution, stream: Stream, offset: int, data: bytes
    ) -> None:
        try:
            await execution.sink.output(execution.exec_id, stream, offset, data)
        except Exception:
            self._log.exception("output could not be taken", exec_id=execution.exec_id)
            execution.discarding = True
            self._send(wire.control(wire.CANCEL, execution.channel, -1))

    async def _record(self, execution: Execution, outcome: Outcome) -> None:
        for attempt in range(RECORD_ATTEMPTS):
            try:
                await execution.sink.ended(execution.exec_id, outcome)
                break
            except Exception:
                self._log.exception("outcome could not be taken", exec_id=execution.exec_id)
                await asyncio.sleep(0.1 * 2**attempt)
        else:
            return  # the supervisor keeps it, for the next process
        self._recorded_end(execution)

    def _recorded_end(self, execution: Execution) -> None:
        self._drop(execution)
        if not self.lost:
            self._send_later(wire.frame(wire.RECORDED, execution.channel))

    def _acknowledge(self, channel: int, stream: Stream, offset: int) -> None:
        if not self._acks:
            self._loop.call_soon(self._flush_acks)
        self._acks[channel, stream] = offset

    def _flush_acks(self) -> None:
        acks, self._acks = self._acks, {}
        for (channel, stream), offset in acks.items():
            if channel in self._by_channel:
                self._send(wire.frame(wire.ACK, channel, flag=int(stream), offset=offset))

    async def close(self) -> None:
        """End the pumps where they are."""
        pumps = list(self._pumps)
        for pump in pumps:
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)
