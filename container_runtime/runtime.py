"""Composes a node's runtime: everything behind the servicers."""

import asyncio
import fcntl
import os
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from container_runtime import limits
from container_runtime.config import Config
from container_runtime.containers import Containers
from container_runtime.creation import Maker
from container_runtime.disk import Disk
from container_runtime.engine import Engine
from container_runtime.errors import ContainerNotActive, HostUnsuitable
from container_runtime.events import Events
from container_runtime.execution import Execution
from container_runtime.executions import Executions
from container_runtime.images import Build, Images
from container_runtime.installation import Installation
from container_runtime.interpreter import Bundle, collect
from container_runtime.layers import LayerWatch
from container_runtime.pool import Pool
from container_runtime.reconciliation import Reconciler
from container_runtime.records import ExecutionRequest
from container_runtime.room import Capacity
from container_runtime.stdin import feed_stdin
from container_runtime.store import Store
from container_runtime.tasks import Tasks
from container_runtime.usage import UsageReader
from container_runtime.volumes import Volumes
from workroom.paths import Home, check_socket_path, private_folder

SPOOL_WRITERS = 4


def now() -> datetime:
    """The time."""
    return datetime.now(UTC)


@dataclass(frozen=True)
class Runtime:
    """What servicers need."""

    containers: Containers
    executions: Executions
    installation: Installation
    capacity: Capacity
    tasks: Tasks
    events: Events
    pool: Pool
    volumes: Volumes
    usage: UsageReader
    sizes: limits.Sizes

    async def start(self, request: ExecutionRequest) -> Execution:
        """Start a command in its container, which is resumed if it is suspended, or return the
        execution that has its id. Raises what `Containers.ready` and `Executions.start` do."""
        try:
            return await self.executions.start(request)
        except ContainerNotActive:
            await self.containers.ready(request.container_id)
            return await self.executions.start(request)

    async def run(self, request: ExecutionRequest, stdin: bytes) -> Execution:
        """As `start`; `stdin` is written as the command reads it, and then ended."""
        execution = await self.start(request)
        if stdin and not execution.over:
            self.tasks.create_task(feed_stdin(self.executions, execution.id, stdin))
        return execution


@asynccontextmanager
async def running(
    config: Config,
    home: Home,
    engine: Engine,
    clock: Callable[[], datetime] = now,
    bundle: Bundle | None = None,
    build: Build | None = None,
) -> AsyncIterator[Runtime]:
    """A runtime on `home`, reconciled with the engine; containers live on when the body ends.
    `bundle` is the interpreter for supervisors; by default this process's own is collected.
    Without `build`, our own images are only those that the engine has.

    Raises `HostUnsuitable`, `EngineUnavailable`, `InterpreterUnusable` or OSError. When a
    background task crashes, the body is cancelled and an ExceptionGroup raised.
    """
    home.create()
    with _locked(home.run / "runtime.lock"):
        installation = await _installation(config, home, bundle)
        volumes = await Volumes.opened(
            home.root / "disks", "" if config.bound_disks else "RUNTIME_BOUND_DISKS turns it off"
        )
        threads = ThreadPoolExecutor(SPOOL_WRITERS, thread_name_prefix="spool")
        try:
            async with Store.opened(home.db) as store, Tasks() as tasks:
                parts = _Parts(config, engine, store, installation, volumes, tasks, clock)
                async with _composed(parts, home, threads, build) as runtime:
                    yield runtime
        finally:
            threads.shutdown()


@dataclass(frozen=True)
class _Parts:
    """What most of a runtime is made of."""

    config: Config
    engine: Engine
    store: Store
    installation: Installation
    volumes: Volumes
    tasks: Tasks
    clock: Callable[[], datetime]


@asynccontextmanager
async def _composed(
    parts: _Parts, home: Home, threads: ThreadPoolExecutor, build: Build | None
) -> AsyncIterator[Runtime]:
    config, tasks, clock, volumes = parts.config, parts.tasks, parts.clock, parts.volumes
    sizes = limits.sizes(config.disk_percent)
    disk = Disk(home.spool, config.min_free_bytes)
    images = Images(parts.engine, tasks, build)
    events = await Events.opened(parts.store)
    spools = parts.installation.spool_directory
    executions = Executions(parts.store, spools, disk, threads, tasks, clock)
    maker = Maker(
        parts.engine,
        images,
        parts.store,
        events,
        executions,
        parts.installation,
        volumes,
        sizes,
        tasks,
        clock,
    )
    node_id = config.node_id
    pool = Pool(maker, images, disk, tasks, clock, config.pool_targets, node_id=node_id)
    capacity = Capacity(config.max_containers, config.max_suspended)
    containers = Containers(
        maker, executions, pool, disk, tasks, clock, node_id=node_id, capacity=capacity
    )
    reconciler = Reconciler(
        parts.engine,
        parts.store,
        containers,
        executions,
        maker,
        parts.installation,
        volumes,
        tasks,
    )
    await reconciler.at_start()
    full = containers.losses.stop_full
    layers = LayerWatch(containers.all, volumes, full, sizes, config.min_free_bytes)
    interval = config.reap_interval.total_seconds()
    for work in (
        reconciler.watch_for_ever(),
        _reap_for_ever(containers, interval),
        pool.keep_for_ever(containers.has_room),
        layers.watch_for_ever(),
    ):
        tasks.create_task(work)
    usage = UsageReader(containers, volumes, layers, sizes)
    try:
        yield Runtime(
            containers,
            executions,
            parts.installation,
            capacity,
            tasks,
            events,
            pool,
            volumes,
            usage,
            sizes,
        )
    finally:
        await containers.close()
        await pool.close()
        tasks.cancel_all()


async def _installation(config: Config, home: Home, bundle: Bundle | None) -> Installation:
    links = home.run / "link"
    spools = home.spool / "executions"
    private_folder(links)
    private_folder(spools)
    check_socket_path(links / "ctr_0123456789abcdef" / "host.sock")
    if bundle is None:
        bundle = await asyncio.to_thread(collect, home.root / "interpreter")
    return Installation(home.installation_id(), config.node_id, links, spools, bundle)


async def _reap_for_ever(containers: Containers, interval: float) -> None:
    while True:
        await asyncio.sleep(interval)
        await containers.reap()


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """One runtime at a time works on a home."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise HostUnsuitable(
                f"another container_runtime works on {path.parent.parent}", path=str(path)
            ) from None
        yield
    finally:
        os.close(descriptor)
