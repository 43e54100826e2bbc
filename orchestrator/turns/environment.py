"""Owns a session's environment as the loop sees it: made before the first step, read at the end."""

from dataclasses import replace

from orchestrator import ids
from orchestrator.blobs import Blobs
from orchestrator.records import (
    Artifact,
    Environment,
    EnvironmentState,
    EventKind,
    Session,
)
from orchestrator.store.reading import SessionReader
from orchestrator.turns.journal import Journal
from orchestrator.turns.ports import Environments
from workroom.errors import WorkroomError

ARTIFACT_BYTES = 1024 * 1024 * 1024
"""The largest file that is published."""


def session_blobs(session_id: str) -> str:
    """Where the contents of a session's files and artifacts are."""
    return f"sessions/{session_id}"


class SessionEnvironments:
    """Prepares environments and fetches what was left in them."""

    def __init__(self, environments: Environments, blobs: Blobs, reader: SessionReader) -> None:
        self._environments = environments
        self._blobs = blobs
        self._reader = reader

    async def prepare(self, session: Session) -> Environment:
        """The environment, with commands able to run in it. Errors: those of the runtime."""
        environment = session.environment
        container_id = await self._environments.prepare(
            environment,
            session_id=session.id,
            open_file=lambda file: self._blobs.read(file.blob),
        )
        return replace(
            environment,
            state=EnvironmentState.READY,
            container_id=container_id,
            data_map=await self._environments.data_map(container_id, environment.files),
        )

    async def rejoin(self, session: Session) -> None:
        """Makes sure that the container which a session has runs under its network policy."""
        await self._environments.rejoin(session.environment, session_id=session.id)

    async def fetch_outputs(self, journal: Journal) -> tuple[Artifact, ...]:
        """The files left for the user that are new or changed, their content kept from now on.

        Errors: those of the runtime; `FileTooLarge`, `DiskFull`.
        """
        session = journal.session
        known = await self._reader.latest_artifacts(session.id)
        published = []
        for file in await self._environments.outputs(journal.container_id):
            artifact_id = ids.derived("art", journal.turn_id, file.path)
            blob = f"{session_blobs(session.id)}/artifacts/{artifact_id}"
            content = self._environments.read_file(journal.container_id, file.raw)
            try:
                stored = await self._blobs.write(blob, content, limit_bytes=ARTIFACT_BYTES)
            except WorkroomError as error:
                if error.reason != "FILE_NOT_FOUND":
                    raise
                continue  # removed since it was listed
            before = known.get(file.path)
            if before is not None and before.sha256 == stored.sha256:
                await self._blobs.delete(blob)
                continue
            published.append(
                Artifact(
                    id=artifact_id,
                    session_id=session.id,
                    turn_id=journal.turn_id,
                    environment_id=session.environment.id,
                    path=file.path,
                    size_bytes=stored.size_bytes,
                    sha256=stored.sha256,
                    create_time=journal.now(),
                    blob=blob,
                )
            )
        return tuple(published)


ENDS = {
    EnvironmentState.FAILED: EventKind.ENVIRONMENT_FAILED,
    EnvironmentState.EXPIRED: EventKind.ENVIRONMENT_EXPIRED,
}
"""How the end of an environment is told."""
