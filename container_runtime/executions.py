"""Owns which executions there are: starts each at most once, takes in its output and its end.

Knows containers only as hosts with a supervisor link; knows no engine and no transport.
"""

import asyncio
import shutil
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path

import structlog

from container_runtime.disk import Disk, SpoolThreads
from container_runtime.errors import (
    ContainerNotActive,
    ExecutionExists,
    ExecutionUnknown,
    HostDiskFull,
    NoTerminal,
    SpoolFailed,
    SupervisorUnavailable,
)
from container_runtime.execution import Execution
from container_runtime.link import ContainerLost, ExecutionNotFound, Link, SupervisorAway
from container_runtime.model import Ending, LostReason, Offsets, Outcome, PtySize, Stream
from container_runtime.records import ExecutionRecord, ExecutionRequest, SpoolPolicy
from container_runtime.spool import StreamSpool
from container_runtime.store import Store
from container_runtime.supervised import supervised

log = structlog.get_logger(__name__)

ENDED_IN_MEMORY = 1000
"""How many executions that are over are kept at hand; all others are read from the store."""

EXPLAINED_WITHIN = timedelta(seconds=3)
"""After a container's main process ended, how long its commands wait to be told why."""

CANCEL_MARGIN = timedelta(seconds=15)
"""Past its grace, how long a cancelled tree may take to be reported dead."""


@dataclass(frozen=True)
class Host:
    """A container as executions see it."""

    container_id: str
    link: Link
    environment: Mapping[bytes, bytes]
    """What every command starts from."""
    touch: Callable[[], None]
    """Says that something happened in it."""


class Executions:
    """All executions of a node. Belongs to one event loop; tasks live in `tasks`."""

    def __init__(
        self,
        store: Store,
        spool_directory: Path,
        disk: Disk,
        threads: SpoolThreads,
        tasks: asyncio.TaskGroup,
        clock: Callable[[], datetime],
    ) -> None:
        self._store = store
        self._directory = spool_directory
        self._disk = disk
        self._threads = threads
        self._tasks = tasks
        self._clock = clock
        self._hosts: dict[str, Host] = {}
        self._running: dict[str, Execution] = {}
        self._running_in: dict[str, set[str]] = {}
        self._ended: OrderedDict[str, Execution] = OrderedDict()
        self._known: dict[str, str] = {}
        self._losses: dict[str, tuple[LostReason, str]] = {}
        self._unexplained: dict[str, asyncio.Event] = {}

    # Containers come and go

    def sink(self, container_id: str) -> "ContainerSink":
        """Where a container's link delivers."""
        return ContainerSink(self, container_id)

    def attach(self, host: Host) -> None:
        """Commands can be started in this container."""
        (self._directory / host.container_id).mkdir(mode=0o700, exist_ok=True)
        self._hosts[host.container_id] = host
        self._losses.pop(host.container_id, None)
        self._running_in.setdefault(host.container_id, set())

    async def recover(self, container_id: str) -> None:
        """Take up what an earlier process knew of a container, before its link is opened."""
        (self._directory / container_id).mkdir(mode=0o700, exist_ok=True)
        for execution_id in await self._store.execution_ids(container_id):
            self._known[execution_id] = container_id
        self._running_in.setdefault(container_id, set())
        for record in await self._store.running(container_id):
            self._add(self._take_up(record))

    async def settle(self, container_id: str) -> None:
        """Forget those of `recover`'s that the supervisor, now back, was never told of."""
        link = self._hosts[container_id].link
        for execution in self._running_of(container_id):
            if not execution.accepted and not execution.starting.locked():
                try:
                    link.status(execution.id)
                    self._accept(execution, execution.record().created)
                except ExecutionNotFound:
                    if not execution.over:
                        log.info("execution was never accepted", execution_id=execution.id)
                        self._drop(execution)

    async def all_over(self, container_id: str) -> None:
        """Return when nothing runs in a container."""
        for execution in self._running_of(container_id):
            await execution.wait()

    def explain(self, container_id: str, reason: LostReason, message: str) -> None:
        """From now on, what is lost in this container was lost for this reason, unless another was
        given before."""
        self._losses.setdefault(container_id, (reason, message))
        self._unexplained.pop(container_id, asyncio.Event()).set()

    def retract(self, container_id: str) -> None:
        """What was explained did not come true."""
        self._losses.pop(container_id, None)

    async def explained(self, container_id: str) -> None:
        """Return when it is known why a container was lost, or should be."""
        if container_id in self._losses:
            return
        waiting = self._unexplained.setdefault(container_id, asyncio.Event())
        try:
            async with asyncio.timeout(EXPLAINED_WITHIN.total_seconds()):
                await waiting.wait()
        except TimeoutError:
            pass

    def end_all(self, container_id: str, reason: LostReason, message: str) -> None:
        """Whatever still counts as running in a container was lost with it, for this reason
        unless another was given before."""
        self.explain(container_id, reason, message)
        for execution in self._running_of(container_id):
            totals = execution.record()
            self.end(
                execution,
                Outcome(
                    Ending.LOST,
                    stdout_bytes=totals.stdout.total,
                    stderr_bytes=totals.stderr.total,
                ),
            )

    def detach(self, container_id: str) -> None:
        """No command can be started in this container any more."""
        self._hosts.pop(container_id, None)

    async def forget(self, container_id: str) -> None:
        """Delete everything about a container's executions but the store's rows."""
        self.detach(container_id)
        self._losses.pop(container_id, None)
        self._running_in.pop(container_id, None)
        for execution_id in [key for key, owner in self._known.items() if owner == container_id]:
            del self._known[execution_id]
            self._running.pop(execution_id, None)
            self._ended.pop(execution_id, None)
        await asyncio.to_thread(shutil.rmtree, self._directory / container_id, True)

    def running_in(self, container_id: str) -> int:
        """How many executions run in a container."""
        return len(self._running_in.get(container_id, ()))

    def _running_of(self, container_id: str) -> list[Execution]:
        return [self._running[key] for key in self._running_in.get(container_id, ())]

    # Finding

    async def get(self, execution_id: str) -> Execution:
        """One execution, whatever its state; its container counts as used. Raises
        `ExecutionUnknown`."""
        execution = await self._find(execution_id)
        if execution is None:
            raise ExecutionUnknown(
                f"no execution {execution_id} on this node", execution_id=execution_id
            )
        host = self._hosts.get(execution.request.container_id)
        if host is not None:
            host.touch()
        return execution

    async def list(
        self, container_id: str, after: int, limit: int
    ) -> list[tuple[int, ExecutionRecord]]:
        """A container's executions, oldest first, numbered, from behind number `after`."""
        found = await self._store.executions(container_id, after, limit)
        return [(number, self._freshest(record)) for number, record in found]

    def _freshest(self, record: ExecutionRecord) -> ExecutionRecord:
        execution = self._running.get(record.id)
        return record if execution is None else execution.record()

    async def _find(self, execution_id: str) -> Execution | None:
        at_hand = self._running.get(execution_id) or self._ended.get(execution_id)
        if at_hand is not None or execution_id not in self._known:
            return at_hand
        record = await self._store.execution(execution_id)
        if record is None:
            return None
        execution = self._take_up(record)
        self._keep_ended(execution)
        return execution

    def _take_up(self, record: ExecutionRecord) -> Execution:
        execution = self._make(record)
        for stream, totals in ((Stream.STDOUT, record.stdout), (Stream.STDERR, record.stderr)):
            spool = execution.spools[stream]
            spool.recover()
            if record.outcome is not None:
                spool.finish(totals.total)
        return execution

    def _make(self, record: ExecutionRecord) -> Execution:
        base = f"{self._directory}/{record.request.container_id}/{record.id}"
        spec = record.request.spool
        return Execution(
            record,
            StreamSpool(f"{base}.stdout", spec, self._threads),
            StreamSpool(f"{base}.stderr", spec, self._threads),
        )

    # Starting

    async def start(self, request: ExecutionRequest) -> Execution:
        """Start a command, or return the one that has its id; the container was looked at.

        Raises `ExecutionExists`, `HostDiskFull`, `ContainerNotActive`, `SupervisorUnavailable`,
        and the link's `TooManyExecutions` and `InvalidField`. A caller that leaves stops nothing.
        """
        while True:
            execution = await self._find(request.id)
            if execution is None:
                execution = self._create(request)
            elif execution.request != request:
                raise ExecutionExists(
                    f"execution {request.id} is that of another command", execution_id=request.id
                )
            if execution.accepted or execution.over:
                return execution
            failed = await asyncio.shield(self._tasks.create_task(self._submitted(execution)))
            if failed is not None:
                raise failed
            if execution.accepted or execution.over:
                return execution

    def _create(self, request: ExecutionRequest) -> Execution:
        self._host(request.container_id)
        self._disk.check()
        record = ExecutionRecord(request, self._clock())
        self._store.add_execution(record)
        execution = self._make(record)
        self._add(execution)
        return execution

    def _add(self, execution: Execution) -> None:
        self._known[execution.id] = execution.request.container_id
        self._running[execution.id] = execution
        self._running_in[execution.request.container_id].add(execution.id)

    def _drop(self, execution: Execution) -> None:
        self._store.drop_execution(execution.id)
        self._known.pop(execution.id, None)
        self._running.pop(execution.id, None)
        self._running_in.get(execution.request.container_id, set()).discard(execution.id)

    async def _submitted(self, execution: Execution) -> Exception | None:
        """Hands an execution to its supervisor, unless somebody else did so meanwhile; returns
        what went wrong."""
        async with execution.starting:
            if execution.accepted or execution.over:
                return None
            if self._running.get(execution.id) is not execution:
                return None  # refused meanwhile: the caller begins anew
            container_id = execution.request.container_id
            try:
                with supervised(container_id):
                    await self._submit(self._host(container_id), execution)
            except SupervisorUnavailable as error:
                self._tasks.create_task(self._settle_one(execution))
                return error
            except Exception as error:
                if not execution.over:
                    self._drop(execution)
                return error
            return None

    async def _submit(self, host: Host, execution: Execution) -> None:
        host.touch()
        spec = execution.request.spec
        await host.link.start(replace(spec, env={**host.environment, **spec.env}))
        self._accept(execution, self._clock())

    def _accept(self, execution: Execution, when: datetime) -> None:
        execution.accept(when)
        timeout = execution.request.spec.timeout
        if timeout is not None and execution.request.spool.policy is SpoolPolicy.BLOCK:
            # A command that is being ended must not wait for a reader.
            loop = asyncio.get_running_loop()
            loop.call_later(timeout.total_seconds(), execution.release)

    async def _settle_one(self, execution: Execution) -> None:
        """Find out whether the supervisor got a start that it did not answer."""
        host = self._hosts.get(execution.request.container_id)
        while host is not None and not execution.over:
            try:
                await host.link.ready()
                async with execution.starting:
                    if execution.accepted or execution.over:
                        return
                    host.link.status(execution.id)
                    self._accept(execution, self._clock())
            except SupervisorAway:
                continue
            except (ContainerLost, ExecutionNotFound):
                if self._running.get(execution.id) is execution:
                    self._drop(execution)
            return

    def _host(self, container_id: str) -> Host:
        try:
            return self._hosts[container_id]
        except KeyError:
            raise ContainerNotActive(
                f"container {container_id} is not active", container_id=container_id
            ) from None

    # Steering

    def link_of(self, execution: Execution) -> Link:
        """The supervisor link of a running execution. Raises `ContainerNotActive`."""
        return self._host(execution.request.container_id).link

    async def signal(self, execution_id: str, signal: int) -> None:
        """Signal a whole process tree; nothing happens once it has ended."""
        execution = await self.get(execution_id)
        if execution.over:
            return
        with supervised(execution.request.container_id):
            try:
                await self.link_of(execution).signal(execution.id, signal)
            except ExecutionNotFound:
                return

    async def cancel(self, execution_id: str) -> Execution:
        """End a whole process tree and wait for that. Raises `SupervisorUnavailable`."""
        execution = await self.get(execution_id)
        if execution.over:
            return execution
        execution.release()
        container_id = execution.request.container_id
        bound = execution.request.spec.grace + CANCEL_MARGIN
        with supervised(container_id):
            try:
                async with asyncio.timeout(bound.total_seconds()):
                    try:
                        await self.link_of(execution).cancel(execution.id)
                    except ExecutionNotFound:
                        pass  # its end is on the way
                    await execution.wait()
            except TimeoutError:
                raise SupervisorUnavailable(
                    f"execution {execution_id} was not reported dead in time",
                    execution_id=execution_id,
                ) from None
        return execution

    async def resize(self, execution_id: str, size: PtySize) -> None:
        """Resize a terminal. Raises `NoTerminal`."""
        execution = await self.get(execution_id)
        if execution.request.spec.pty is None:
            raise NoTerminal(f"execution {execution_id} has no terminal", execution_id=execution_id)
        if execution.over:
            return
        with supervised(execution.request.container_id):
            try:
                await self.link_of(execution).resize(execution_id, size)
            except ExecutionNotFound:
                return

    # What the link delivers

    def delivered(self, container_id: str, execution_id: str) -> Execution | None:
        """The running execution of this container that has this id."""
        execution = self._running.get(execution_id)
        if execution is None or execution.request.container_id != container_id:
            return None
        return execution

    def end(self, execution: Execution, outcome: Outcome) -> None:
        """Record an end."""
        self._check_counts(execution, outcome)
        if outcome.ending is Ending.LOST:
            reason, message = self._losses.get(
                execution.request.container_id, (LostReason.DIED, outcome.message)
            )
            outcome = replace(outcome, lost=reason, message=message)
        now = self._clock()
        execution.end(outcome, now)
        try:
            self._store.end_execution(execution.record())
        except HostDiskFull:
            log.exception("end not recorded", execution_id=execution.id)
        container_id = execution.request.container_id
        self._running.pop(execution.id, None)
        self._running_in.get(container_id, set()).discard(execution.id)
        self._keep_ended(execution)
        host = self._hosts.get(container_id)
        if host is not None:
            host.touch()

    def _check_counts(self, execution: Execution, outcome: Outcome) -> None:
        if outcome.ending is Ending.LOST:
            return
        counted = (outcome.stdout_bytes, outcome.stderr_bytes)
        spooled = tuple(execution.spools[stream].received for stream in Stream)
        if counted != spooled:
            log.error(
                "output incomplete", execution_id=execution.id, counted=counted, spooled=spooled
            )

    def _keep_ended(self, execution: Execution) -> None:
        self._ended[execution.id] = execution
        while len(self._ended) > ENDED_IN_MEMORY:
            self._ended.popitem(last=False)


class ContainerSink:
    """Takes what one container's link delivers; a `model.PromptSink`."""

    def __init__(self, executions: Executions, container_id: str) -> None:
        self._executions = executions
        self._container_id = container_id

    async def output(self, exec_id: str, stream: Stream, offset: int, data: bytes) -> None:
        """Put output into the spool and tell watchers."""
        execution = self._executions.delivered(self._container_id, exec_id)
        if execution is None:
            raise SpoolFailed(f"output of execution {exec_id}, which does not run")
        await execution.spools[stream].write(offset, data, execution.tell)

    def output_now(self, exec_id: str, stream: Stream, offset: int, data: bytes) -> bool:
        """As `output`, where neither a reader nor the disk has to be waited for."""
        execution = self._executions.delivered(self._container_id, exec_id)
        if execution is None:
            return False
        return execution.spools[stream].write_now(offset, data, execution.tell)

    async def ended(self, exec_id: str, outcome: Outcome) -> None:
        """Record an end and tell watchers."""
        if outcome.ending is Ending.LOST:
            await self._executions.explained(self._container_id)
        self._end(exec_id, outcome)

    def ended_now(self, exec_id: str, outcome: Outcome) -> bool:
        """As `ended`, unless the reason of a loss has to be waited for."""
        if outcome.ending is Ending.LOST:
            return False
        self._end(exec_id, outcome)
        return True

    def _end(self, exec_id: str, outcome: Outcome) -> None:
        execution = self._executions.delivered(self._container_id, exec_id)
        if execution is not None:
            self._executions.end(execution, outcome)

    async def resume(self, exec_id: str) -> Offsets | None:
        """How much of an execution is here."""
        execution = self._executions.delivered(self._container_id, exec_id)
        if execution is None:
            return None
        return Offsets(*(execution.spools[stream].received for stream in Stream))
