"""Owns what is to be known of containers beside turns: who sleeps, and what nobody owns."""

import asyncio
from contextlib import aclosing
from datetime import timedelta

import structlog

from orchestrator.blobs import Blobs
from orchestrator.environments.suspensions import Suspensions
from orchestrator.store.reading import SessionReader
from orchestrator.store.sessions import SessionStore
from orchestrator.turns.ports import Environments
from workroom.errors import WorkroomError

log = structlog.get_logger(__name__)

INTERVAL = timedelta(minutes=5)
AGAIN = timedelta(seconds=1)
"""How long after a failure the runtime is asked again."""


async def remove_orphaned_blobs(blobs: Blobs, reader: SessionReader) -> None:
    """Delete the contents of sessions that are no more. Before any session can be created."""
    folders = await blobs.names("sessions")
    known = await reader.known(folders)
    for session_id in folders:
        if session_id not in known:
            await blobs.delete(f"sessions/{session_id}")


async def note_suspensions_forever(suspensions: Suspensions, store: SessionStore) -> None:
    """Write down which environments fall asleep, until cancelled."""
    while True:
        try:
            async with aclosing(suspensions.sleeping()) as sleeping:
                async for environment_id in sleeping:
                    await store.suspend(environment_id)
        except WorkroomError as error:
            log.debug("suspensions are not heard", detail=error.message)
        await asyncio.sleep(AGAIN.total_seconds())


async def sweep_forever(environments: Environments, reader: SessionReader) -> None:
    """Delete containers without an owner, at once and then now and again, until cancelled."""
    while True:
        try:
            await environments.sweep(reader.live_environments)
        except WorkroomError as error:
            log.warning("containers were not swept", detail=error.message)
        await asyncio.sleep(INTERVAL.total_seconds())
