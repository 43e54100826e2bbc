"""Fetches what a turn has published into a folder, under names that cannot leave it."""

import os
from pathlib import Path, PurePosixPath

import grpc

from workroom.client import Client
from workroom.errors import WorkroomError
from workroom.orchestrator.v1 import events_pb2

OUTPUTS = PurePosixPath("/workspace/outputs")


class UnsafeArtifact(WorkroomError):
    """An artifact's name would lead out of the folder it is fetched into."""

    code = grpc.StatusCode.FAILED_PRECONDITION
    reason = "UNSAFE_ARTIFACT"


async def fetch(client: Client, session_id: str, folder: Path) -> list[Path]:
    """Fetches all of a session's artifacts; of several for one path, the newest."""
    newest: dict[str, events_pb2.Artifact] = {}
    async for artifact in client.artifacts(session_id):
        newest[artifact.path] = artifact
    fetched = []
    for artifact in newest.values():
        destination = destination_of(artifact, folder)
        _make_parent(destination, folder)
        await client.download(artifact, destination)
        fetched.append(destination)
    return fetched


def destination_of(artifact: events_pb2.Artifact, folder: Path) -> Path:
    """Where an artifact goes below `folder`: its path below /workspace/outputs."""
    path = PurePosixPath(artifact.path)
    parts = path.relative_to(OUTPUTS).parts if path.is_relative_to(OUTPUTS) else ()
    if not parts or any(part in ("..", "") or os.sep in part for part in parts):
        raise UnsafeArtifact(f"the artifact's path {artifact.path!r} is not below {OUTPUTS}")
    return folder.joinpath(*parts)


def _make_parent(destination: Path, folder: Path) -> None:
    destination.parent.mkdir(parents=True, exist_ok=True)
    if not destination.parent.resolve().is_relative_to(folder.resolve()):
        raise UnsafeArtifact(f"{destination.parent} is a symbolic link out of {folder}")
