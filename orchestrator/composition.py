"""Owns how the orchestrator is put together; the nesting is the order of start and stop."""

import asyncio
import fcntl
import os
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from datetime import UTC, datetime
from pathlib import Path

from orchestrator.agents import Agents
from orchestrator.blobs import Blobs
from orchestrator.config import Config
from orchestrator.context import assemble
from orchestrator.environments.environments import Environments
from orchestrator.environments.suspensions import Suspensions
from orchestrator.errors import AlreadyRunning
from orchestrator.files import Files
from orchestrator.providers import Providers
from orchestrator.reviews import Reviews
from orchestrator.secrets import Vault
from orchestrator.servicers.agents import AgentServicer
from orchestrator.servicers.files import FileServicer
from orchestrator.servicers.keys import KeyServicer
from orchestrator.servicers.sessions import SessionServicer
from orchestrator.sessions.cleaning import (
    note_suspensions_forever,
    remove_orphaned_blobs,
    sweep_forever,
)
from orchestrator.sessions.feed import Feeds
from orchestrator.sessions.neighbours import Neighbours
from orchestrator.sessions.sessions import Sessions
from orchestrator.sessions.workers import Workers
from orchestrator.store.agents import AgentStore
from orchestrator.store.database import Database
from orchestrator.store.files import FileStore
from orchestrator.store.keys import KeyStore
from orchestrator.store.leases import Leases
from orchestrator.store.reading import SessionReader
from orchestrator.store.sessions import SessionStore
from orchestrator.tools.runner import CommandRunner
from orchestrator.turns.acting import Acting
from orchestrator.turns.environment import SessionEnvironments
from orchestrator.turns.loop import TurnLimits, TurnLoop
from workroom.paths import Home
from workroom.rpc.auth import Principal, Verifier
from workroom.rpc.channel import open_channel
from workroom.rpc.drain import Drain
from workroom.rpc.server import Listener, Serving, serving

SERVICES = (
    "workroom.orchestrator.v1.SessionService",
    "workroom.orchestrator.v1.AgentService",
    "workroom.orchestrator.v1.FileService",
    "workroom.orchestrator.v1.KeyService",
)


def now() -> datetime:
    return datetime.now(UTC)


@asynccontextmanager
async def running(config: Config, home: Home) -> AsyncIterator[Serving]:
    """The orchestrator, taking calls while the body runs and going on with unfinished turns.

    Errors: `AlreadyRunning`, `UnusableKeyFile`, `DatabaseUnavailable`, `ScriptInvalid`,
    `InvalidField`, and those of `serving`.
    """
    config = config.settled(home)
    assert config.key_file is not None
    vault = Vault.open(config.key_file)
    async with AsyncExitStack() as stack:
        stack.enter_context(_alone(home.db / "orchestrator.lock"))
        name = home.installation_id()
        database = await stack.enter_async_context(_database(config, home, name))
        leases = Leases(database, name, config.lease_time)
        await stack.enter_async_context(leases.living())
        reader = SessionReader(database)
        vault.unseal(await reader.some_sealed_key())
        blobs = Blobs(config.blob_dir or home.db / "blobs", reserve_bytes=config.disk_reserve_bytes)
        if not database.is_shared:
            await remove_orphaned_blobs(blobs, reader)
        feeds = Feeds(now)
        store = SessionStore(database, feeds.publish, now, leases)
        providers = await stack.enter_async_context(Providers.open(config.model_settings(), vault))
        runtime = await stack.enter_async_context(open_channel(config.runtime_address))
        egress = await stack.enter_async_context(open_channel(config.egress_address))
        reviewer = await stack.enter_async_context(open_channel(config.reviewer_address))
        environments = Environments(runtime, egress)
        session_environments = SessionEnvironments(environments, blobs, reader)
        runner = await stack.enter_async_context(CommandRunner(runtime))
        loop = TurnLoop(
            store,
            providers,
            assemble,
            Acting(runner, Reviews(reviewer)),
            session_environments,
            TurnLimits(config.max_steps, config.max_turn_time),
        )
        workers = await stack.enter_async_context(
            Workers(store, reader, feeds, loop, session_environments, now)
        )
        neighbours = Neighbours(database, leases, reader, feeds, workers, name)
        await stack.enter_async_context(neighbours.followed())
        await stack.enter_async_context(
            _working(
                sweep_forever(environments, reader),
                note_suspensions_forever(Suspensions(runtime), store),
            )
        )
        files = FileStore(database)
        keys = KeyStore(database, now)
        agent_store = AgentStore(database)
        agents = Agents(agent_store, providers, vault, now)
        drain = Drain()
        sessions = Sessions(
            store=store,
            reader=reader,
            files=files,
            blobs=blobs,
            feeds=feeds,
            workers=workers,
            agents=agents,
            environments=environments,
            clock=now,
        )
        servicer = SessionServicer(
            sessions,
            reader,
            drain,
            anyone_may_name_endpoints=config.allow_session_endpoints,
        )
        registered = (
            servicer.register,
            AgentServicer(
                agents, agent_store, anyone_may_name_endpoints=config.allow_session_endpoints
            ).register,
            FileServicer(Files(files, blobs, now), files).register,
            KeyServicer(keys).register,
        )
        listeners = (Listener(config.socket), Listener(config.address, _verifier(keys)))
        yield await stack.enter_async_context(
            serving(registered, listeners, services=SERVICES, grace=config.grace, drain=drain)
        )


def _database(config: Config, home: Home, name: str) -> Database:
    url = config.database_url.get_secret_value()
    return Database(url or home.db / "orchestrator.sqlite", name=name)


def _verifier(keys: KeyStore) -> Verifier:
    async def verify(secret: str) -> Principal | None:
        key = await keys.find(secret)
        return None if key is None else Principal(f"key {key.id}", key.project_id)

    return verify


@asynccontextmanager
async def _working(*endless: Coroutine[None, None, None]) -> AsyncIterator[None]:
    async with asyncio.TaskGroup() as tasks:
        started = [tasks.create_task(work) for work in endless]
        try:
            yield
        finally:
            for task in started:
                task.cancel()


@contextmanager
def _alone(lock: Path) -> Iterator[None]:
    """Hold the data folder. Errors: `AlreadyRunning`."""
    lock.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise AlreadyRunning(
                f"another orchestrator has {lock.parent}; stop it, or set WORKROOM_HOME",
                path=str(lock.parent),
            ) from None
        yield
    finally:
        os.close(descriptor)
