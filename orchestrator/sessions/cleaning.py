"""Owns removing what a crash left behind: containers and contents that no session owns."""

import asyncio
from datetime import timedelta

import structlog

from orchestrator.blobs import Blobs
from orchestrator.store.reading import SessionReader
from orchestrator.turns.ports import Environments
from workroom.errors import WorkroomError

log = structlog.get_logger(__name__)

INTERVAL = timedelta(minutes=5)


async def remove_orphaned_blobs(blobs: Blobs, reader: SessionReader) -> None:
    """Delete the contents of sessions that are no more. Before any session can be created."""
    folders = await blobs.names("sessions")
    known = await reader.known(folders)
    for session_id in folders:
        if session_id not in known:
            await blobs.delete(f"sessions/{session_id}")


async def sweep_forever(environments: Environments, reader: SessionReader) -> None:
    """Delete containers without an owner, at once and then now and again, until cancelled."""
    while True:
        try:
            await environments.sweep(reader.live_environments)
        except WorkroomError as error:
            log.warning("containers were not swept", detail=error.message)
        await asyncio.sleep(INTERVAL.total_seconds())
