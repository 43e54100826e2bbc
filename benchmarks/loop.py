"""Measures what the agent loop costs per step, model and command time excluded.

Run: python -m benchmarks.loop

A step is one model answer with one command, judged and run, every durable write included. The
peers are a process of their own that answers at once over real sockets: nothing is isolated or
judged there, so what is left is the loop, its database and its calls.
"""

import asyncio
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import grpc
import uvloop

from benchmarks import loop_peers
from benchmarks.results import Result
from orchestrator import ids
from orchestrator.__main__ import SWITCH_SECONDS
from orchestrator.blobs import Blobs
from orchestrator.composition import now
from orchestrator.context import assemble
from orchestrator.environments.environments import Environments
from orchestrator.models import model as m
from orchestrator.records import (
    Agent,
    Environment,
    Item,
    ItemState,
    Review,
    Session,
    SessionState,
    Text,
    Turn,
    TurnState,
    UserMessage,
)
from orchestrator.reviews import Reviews
from orchestrator.sessions.feed import Feeds
from orchestrator.sessions.workers import Workers
from orchestrator.store.database import Database
from orchestrator.store.reading import SessionReader
from orchestrator.store.sessions import Input, SessionStore
from orchestrator.tools.followers import OnDelta, PlannedCommand
from orchestrator.tools.results import CommandResult
from orchestrator.tools.runner import CommandRunner
from orchestrator.turns.acting import Acting
from orchestrator.turns.environment import SessionEnvironments
from orchestrator.turns.loop import TurnLimits, TurnLoop
from workroom.rpc.channel import open_channel

ARGUMENTS = json.dumps({"commands": [{"command": "true"}]})


@dataclass
class Clock:
    """When each turn last had nothing but the loop to wait for, and what its steps cost."""

    since: dict[str, float] = field(default_factory=dict)
    excluded: dict[str, float] = field(default_factory=dict)
    overheads: list[float] = field(default_factory=list)

    def step(self, session_id: str) -> None:
        """A step ends and the next begins."""
        at = time.perf_counter()
        if session_id in self.since:
            spent = at - self.since[session_id] - self.excluded.get(session_id, 0.0)
            self.overheads.append(spent)
        self.since[session_id], self.excluded[session_id] = at, 0.0

    def exclude(self, session_id: str, seconds: float) -> None:
        self.excluded[session_id] = self.excluded.get(session_id, 0.0) + seconds


class StepModel:
    """Asks for one command `steps` times and then answers, each time after `delay` ± 50 %."""

    def __init__(self, steps: int, delay: float, clock: Clock) -> None:
        self._steps = steps
        self._delay = delay
        self._clock = clock

    def choose(self, agent: Agent) -> tuple[m.Model, str]:
        return self, "steps"

    async def stream(self, request: m.ModelRequest) -> AsyncGenerator[m.ModelEvent, None]:
        session_id = request.prompt_cache_key or ""
        self._clock.step(session_id)
        begin = time.perf_counter()
        if self._delay:
            await asyncio.sleep(self._delay * random.uniform(0.5, 1.5))
        self._clock.exclude(session_id, time.perf_counter() - begin)
        step = request.turn_step or 0
        usage = m.Usage(input_tokens=1, output_tokens=1, total_tokens=2)
        if step < self._steps:
            yield m.ItemDone(m.FunctionCall(f"call_{step}", "shell", ARGUMENTS))
            yield m.Completed(m.FinishReason.TOOL_CALLS, usage)
        else:
            yield m.ItemDone(m.Message.of("assistant", "Done."))
            yield m.Completed(m.FinishReason.STOP, usage)


class TimedCommands:
    """The real runner; the time until its last result is the commands'."""

    def __init__(self, runner: CommandRunner, clock: Clock) -> None:
        self._runner = runner
        self._clock = clock

    async def run(
        self,
        container_id: str,
        commands: Sequence[PlannedCommand],
        *,
        yield_time: timedelta | None = None,
        on_delta: OnDelta = lambda *_: None,
    ) -> AsyncGenerator[CommandResult, None]:
        begin = time.perf_counter()
        results = self._runner.run(container_id, commands, yield_time=yield_time, on_delta=on_delta)
        async with aclosing(results):
            async for result in results:
                # A container belongs to one session; the peers name it after that.
                session_id = container_id.removeprefix("ctr_")
                self._clock.exclude(session_id, time.perf_counter() - begin)
                yield result

    async def cancel(self, execution_ids: Iterable[str]) -> None:
        await self._runner.cancel(execution_ids)


@asynccontextmanager
async def peers(directory: Path) -> AsyncIterator[str]:
    """Runtime, proxy and reviewer in another process; gives their address."""
    address = f"unix:{directory}/peers.sock"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", loop_peers.__name__, address
    )
    try:
        async with grpc.aio.insecure_channel(address) as channel, asyncio.timeout(30):
            await channel.channel_ready()
        yield address
    finally:
        process.terminate()
        await process.wait()


async def measure(sessions: int, steps: int, delay: float) -> tuple[float, list[float]]:
    """Steps per second with so many sessions at once, and the overhead of each in seconds."""
    clock = Clock()
    async with AsyncExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="wr-")))
        address = await stack.enter_async_context(peers(directory))
        channel = await stack.enter_async_context(open_channel(address))
        database = await stack.enter_async_context(Database(directory / "db"))
        runner = await stack.enter_async_context(CommandRunner(channel))
        reader, feeds = SessionReader(database), Feeds(now)
        store = SessionStore(database, feeds.publish, now)
        environments = SessionEnvironments(
            Environments(channel, channel), Blobs(directory / "blobs"), reader
        )
        acting = Acting(TimedCommands(runner, clock), Reviews(channel))
        loop = TurnLoop(
            store,
            StepModel(steps, delay, clock),
            assemble,
            acting,
            environments,
            TurnLimits(steps + 1),
        )
        workers = await stack.enter_async_context(
            Workers(store, reader, feeds, loop, environments, now)
        )
        made = [_session() for _ in range(sessions)]
        for session, first in made:
            await store.create(session, first, None)
        begin = time.perf_counter()
        for session, _ in made:
            workers.wake(session.id)
        async with asyncio.TaskGroup() as tasks:
            for session, _ in made:
                tasks.create_task(_until_idle(feeds, reader, session.id))
        spent = time.perf_counter() - begin
    return sessions * (steps + 1) / spent, clock.overheads


async def _until_idle(feeds: Feeds, reader: SessionReader, session_id: str) -> None:
    events = feeds.watch(reader, session_id, 0, until_idle=True, durable_only=True)
    async with aclosing(events):
        async for _ in events:
            pass


def _session() -> tuple[Session, Input]:
    session_id, at = ids.new("sess"), now()
    turn = Turn(ids.new("turn"), session_id, TurnState.QUEUED, at)
    said = UserMessage((Text("go"),))
    item = Item(ids.new("msg"), session_id, turn.id, ItemState.COMPLETED, at, said)
    session = Session(
        id=session_id,
        project_id="default",
        state=SessionState.IDLE,
        agent=Agent(),
        environment=Environment(ids.new("env"), session_id, "default"),
        review=Review.NONE,
        metadata={},
        create_time=at,
        last_active_time=at,
    )
    return session, Input(turn, item)


async def results() -> list[tuple[str, float, str]]:
    """Name, value and unit of each thing measured; those with a bar come first."""
    rates = {
        sessions: (await measure(sessions, steps, 0.0))[0]
        for sessions, steps in ((1, 100), (10, 20), (100, 8))
    }
    _, overheads = await measure(100, 8, 1.0)
    return [
        ("loop_steps_per_second", rates[100], "1/s"),
        ("loop_step_overhead_p50_ms", statistics.median(overheads) * 1000, "ms"),
        ("loop_step_overhead_p99_ms", statistics.quantiles(overheads, n=100)[98] * 1000, "ms"),
        ("loop_steps_per_second_1_session", rates[1], "1/s"),
        ("loop_steps_per_second_10_sessions", rates[10], "1/s"),
    ]


async def main() -> None:
    for name, value, unit in await results():
        print(f"{name} {value:.2f} {unit}")


def run() -> list[Result]:
    """Measures the loop."""
    sys.setswitchinterval(SWITCH_SECONDS)
    return [Result(*each) for each in uvloop.run(results())]


if __name__ == "__main__":
    sys.setswitchinterval(SWITCH_SECONDS)
    uvloop.run(main())
