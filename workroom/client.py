"""The client: a thin async layer over the orchestrator's contract, for programs and for the CLI.

Owns the resuming of streams and the chunking of files. Knows no service's insides.
"""

import asyncio
import hashlib
import os
import secrets
import stat
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Self

import grpc

from workroom.errors import InvalidField, WorkroomError
from workroom.orchestrator.v1 import (
    agents_pb2_grpc,
    events_pb2,
    files_pb2,
    files_pb2_grpc,
    keys_pb2_grpc,
    sessions_pb2,
    sessions_pb2_grpc,
)
from workroom.rpc.channel import open_channel, translate_errors

if TYPE_CHECKING:
    from workroom.orchestrator.v1.agents_pb2_grpc import AgentServiceAsyncStub
    from workroom.orchestrator.v1.files_pb2_grpc import FileServiceAsyncStub
    from workroom.orchestrator.v1.keys_pb2_grpc import KeyServiceAsyncStub
    from workroom.orchestrator.v1.sessions_pb2_grpc import SessionServiceAsyncStub

CHUNK_BYTES = 256 * 1024
"""Bytes of a file in one message: a sixteenth of what a message may hold."""

REMOVE_SECONDS = 30
"""How long a deletion may take: its commands are ended and its container removed."""

RESUME_TIME = timedelta(seconds=30)
"""How long a broken event stream is tried to be resumed before giving up: a service that died is
back before."""

RESUME_PAUSES = (0.05, 0.1, 0.25, 0.5, 1.0)
"""Seconds between the attempts; the last one again and again."""


class TransferDamaged(WorkroomError):
    """A file arrived with other content than was sent; fetching it again may help."""

    code = grpc.StatusCode.DATA_LOSS
    reason = "TRANSFER_DAMAGED"


class Client:
    """Talks to one orchestrator.

    The stubs (`sessions`, `agents`, `files`, `keys`) are the whole contract; the methods are what
    every caller would otherwise write again. Methods raise `WorkroomError`; calls on the stubs
    raise gRPC's own errors unless made inside `translate_errors()`.
    """

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.sessions: SessionServiceAsyncStub = sessions_pb2_grpc.SessionServiceStub(channel)
        self.agents: AgentServiceAsyncStub = agents_pb2_grpc.AgentServiceStub(channel)
        self.files: FileServiceAsyncStub = files_pb2_grpc.FileServiceStub(channel)
        self.keys: KeyServiceAsyncStub = keys_pb2_grpc.KeyServiceStub(channel)

    @classmethod
    @asynccontextmanager
    async def connect(cls, address: str, *, key: str | None = None) -> AsyncIterator[Self]:
        """Opens a channel to `address` (`host:port` or `unix:/path`) for as long as the block."""
        channel = open_channel(address, key=key)
        try:
            yield cls(channel)
        finally:
            await channel.close()

    async def upload(self, path: Path) -> files_pb2.File:
        """Stores a regular file. Raises `InvalidField` with `path` for anything else."""
        try:
            mode = os.stat(path).st_mode
        except OSError as error:
            raise InvalidField("path", f"{str(path)!r}: {error.strerror}") from error
        if stat.S_ISDIR(mode):
            raise InvalidField("path", f"{str(path)!r} is a directory; name the files in it")
        if not stat.S_ISREG(mode):
            raise InvalidField("path", f"{str(path)!r} is not a regular file")
        with translate_errors():
            response = await self.files.UploadFile(_upload_parts(path))
        return response.file

    async def events(
        self, session_id: str, *, after: int = 0, until_idle: bool = False
    ) -> AsyncIterator[events_pb2.Event]:
        """A session's events after a place in its log, through restarts of the orchestrator.

        Every durable event comes exactly once. Ends where `WatchEvents` ends.
        """
        resumes = 0
        broken_since = 0.0
        while True:
            request = sessions_pb2.WatchEventsRequest(
                session_id=session_id, after_sequence_number=after, until_idle=until_idle
            )
            try:
                with translate_errors():
                    async for response in self.sessions.WatchEvents(request):
                        event = response.event
                        after = event.sequence_number or after
                        resumes = 0
                        yield event
                    return
            except WorkroomError as error:
                broken_since = broken_since if resumes else time.monotonic()
                late = time.monotonic() - broken_since > RESUME_TIME.total_seconds()
                if error.code is not grpc.StatusCode.UNAVAILABLE or late:
                    raise
            await asyncio.sleep(RESUME_PAUSES[min(resumes, len(RESUME_PAUSES) - 1)])
            resumes += 1

    async def artifacts(self, session_id: str) -> AsyncIterator[events_pb2.Artifact]:
        """All that a session's turns have published, oldest first."""
        token = ""
        while True:
            request = sessions_pb2.ListArtifactsRequest(
                session_id=session_id, page_size=100, page_token=token
            )
            with translate_errors():
                page = await self.sessions.ListArtifacts(request)
            for artifact in page.artifacts:
                yield artifact
            token = page.next_page_token
            if not token:
                return

    async def download(self, artifact: events_pb2.Artifact, destination: Path) -> None:
        """Fetches an artifact, checks it, and puts it at `destination` at once.

        A file that is there is replaced; a symbolic link that is there is replaced, not followed.
        """
        partial = destination.with_name(f".{destination.name[:64]}.{secrets.token_hex(4)}.part")
        digest = hashlib.sha256()
        try:
            with partial.open("xb") as file, translate_errors():
                request = sessions_pb2.ReadArtifactRequest(artifact_id=artifact.id)
                async for response in self.sessions.ReadArtifact(request):
                    digest.update(response.data)
                    file.write(response.data)
            if digest.hexdigest() != artifact.sha256:
                raise TransferDamaged(
                    f"{artifact.path}: the content that arrived has another checksum",
                    artifact_id=artifact.id,
                )
            partial.replace(destination)
        finally:
            partial.unlink(missing_ok=True)

    async def sessions_with(
        self, metadata: Mapping[str, str]
    ) -> AsyncIterator[sessions_pb2.Session]:
        """All sessions that carry these pairs of metadata, newest first."""
        token = ""
        while True:
            request = sessions_pb2.ListSessionsRequest(
                page_size=100, page_token=token, metadata=metadata
            )
            with translate_errors():
                page = await self.sessions.ListSessions(request)
            for session in page.sessions:
                yield session
            token = page.next_page_token
            if not token:
                return

    async def remove(self, session_id: str, file_ids: Sequence[str] = ()) -> None:
        """Ends what a session does and deletes it, then uploaded files; an empty id is none."""
        with translate_errors():
            if session_id:
                await self.sessions.DeleteSession(
                    sessions_pb2.DeleteSessionRequest(session_id=session_id), timeout=REMOVE_SECONDS
                )
            for file_id in file_ids:
                await self.files.DeleteFile(
                    files_pb2.DeleteFileRequest(file_id=file_id), timeout=REMOVE_SECONDS
                )


async def _upload_parts(path: Path) -> AsyncIterator[files_pb2.UploadFileRequest]:
    opened = files_pb2.UploadFileRequest.Open(
        request_id=secrets.token_hex(16), filename=_sendable_name(path)
    )
    yield files_pb2.UploadFileRequest(open=opened)
    with path.open("rb") as file:
        while data := file.read(CHUNK_BYTES):
            yield files_pb2.UploadFileRequest(data=data)


def _sendable_name(path: Path) -> str:
    """The file's name as text; undecodable bytes of it become `?`."""
    return os.fsencode(path.name).decode(errors="replace").replace("\ufffd", "?")
