"""Owns putting files into containers and getting them out again; knows no session and no store."""

import re
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import grpc
import structlog

from orchestrator.runtime_errors import RuntimeUnavailable, runtime_errors
from workroom.errors import WorkroomError
from workroom.runtime.v1 import filesystem_pb2 as pb
from workroom.runtime.v1 import filesystem_pb2_grpc as rpc

log = structlog.get_logger(__name__)

OUTPUTS = b"/workspace/outputs"
MAX_OUTPUTS = 1_000
MAX_DEPTH = 16
MAX_DIRECTORIES = 1_000
"""Bounds of one listing of outputs; what lies beyond is left out, with a warning in the log."""

PIECE_BYTES = 256 * 1024
CALL_TIME = timedelta(seconds=30)
TRANSFER_TIME = timedelta(minutes=15)
"""Deadlines of a small call and of one file's transfer."""

_ESCAPED = re.compile("[\udc80-\udcff]")


@dataclass(frozen=True, slots=True)
class OutputFile:
    """A regular file in a container. `path` is `raw` with bytes that are not UTF-8 as %XX."""

    path: str
    raw: bytes
    size_bytes: int
    modify_time: datetime


class ContainerFiles:
    """Files in containers, as the unprivileged user."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub = rpc.FileServiceStub(channel)

    async def make_directory(self, container_id: str, path: str) -> None:
        """Makes a directory and those above it. Idempotent."""
        request = pb.MakeDirectoryRequest(
            container_id=container_id, path=pb.FilePath(text=path), make_parents=True
        )
        with runtime_errors(container_id):
            await self._stub.MakeDirectory(request, timeout=CALL_TIME.total_seconds())

    async def write(self, container_id: str, path: str, content: AsyncIterator[bytes]) -> int:
        """Writes a file, with the directories above it; returns its size.

        What was there before stays until all of `content` has come.
        """
        opening = pb.WriteFileRequest.Open(
            container_id=container_id, path=pb.FilePath(text=path), make_parents=True
        )
        with runtime_errors(container_id):
            call = self._stub.WriteFile(timeout=TRANSFER_TIME.total_seconds())
            try:
                await call.write(pb.WriteFileRequest(open=opening))
                async for data in content:
                    for start in range(0, len(data), PIECE_BYTES):
                        piece = data[start : start + PIECE_BYTES]
                        await call.write(pb.WriteFileRequest(data=piece))
                await call.done_writing()
                answer = await call
            finally:
                call.cancel()
        return answer.file.size_bytes

    async def read(self, container_id: str, path: str | bytes) -> AsyncIterator[bytes]:
        """A file's content, in pieces.

        Errors: `RuntimeUnavailable` when it was cut; what came before is not the whole file then.
        """
        request = pb.ReadFileRequest(container_id=container_id, path=_file_path(path))
        with runtime_errors(container_id):
            call = self._stub.ReadFile(request, timeout=TRANSFER_TIME.total_seconds())
            try:
                async for answer in call:
                    if answer.data:
                        yield answer.data
                    if answer.end:
                        return
            finally:
                call.cancel()
        raise RuntimeUnavailable("the runtime cut a file short; try again")

    async def outputs(self, container_id: str) -> list[OutputFile]:
        """The regular files below /workspace/outputs, in order; symbolic links are left out."""
        found: list[OutputFile] = []
        waiting = [(OUTPUTS, 1)]
        visited = 0
        while waiting and len(found) < MAX_OUTPUTS and visited < MAX_DIRECTORIES:
            directory, depth = waiting.pop()
            visited += 1
            async with aclosing(self._entries(container_id, directory)) as entries:
                async for entry in entries:
                    raw = entry.path.raw or entry.path.text.encode()
                    if entry.kind == pb.FileInfo.KIND_REGULAR:
                        found.append(_output_file(raw, entry))
                    elif entry.kind == pb.FileInfo.KIND_DIRECTORY and depth < MAX_DEPTH:
                        waiting.append((raw, depth + 1))
                    elif entry.kind == pb.FileInfo.KIND_DIRECTORY:
                        log.warning("outputs lie too deep", container_id=container_id)
                    if len(found) > MAX_OUTPUTS:
                        break
        if waiting or len(found) > MAX_OUTPUTS:
            log.warning("too many outputs", container_id=container_id, kept=MAX_OUTPUTS)
        return sorted(found, key=lambda file: file.raw)[:MAX_OUTPUTS]

    async def _entries(
        self, container_id: str, directory: bytes
    ) -> AsyncGenerator[pb.FileInfo, None]:
        token = ""
        while True:
            request = pb.ListFilesRequest(
                container_id=container_id,
                path=_file_path(directory),
                page_size=1_000,
                page_token=token,
            )
            try:
                with runtime_errors(container_id):
                    answer = await self._stub.ListFiles(request, timeout=CALL_TIME.total_seconds())
            except WorkroomError as error:
                if error.reason in ("FILE_NOT_FOUND", "NOT_A_DIRECTORY", "FILE_PERMISSION_DENIED"):
                    return
                raise
            for entry in answer.files:
                yield entry
            token = answer.next_page_token
            if not token:
                return


def printable_path(raw: bytes) -> str:
    """A name as text, with bytes that are not UTF-8 as %XX."""
    text = raw.decode(errors="surrogateescape")
    return _ESCAPED.sub(lambda byte: f"%{ord(byte[0]) - 0xDC00:02X}", text)


def _output_file(raw: bytes, entry: pb.FileInfo) -> OutputFile:
    modified = entry.modify_time.ToDatetime(tzinfo=UTC)
    return OutputFile(printable_path(raw), raw, entry.size_bytes, modified)


def _file_path(path: str | bytes) -> pb.FilePath:
    if isinstance(path, str):
        return pb.FilePath(text=path)
    try:
        return pb.FilePath(text=path.decode())
    except UnicodeDecodeError:
        return pb.FilePath(raw=path)
