"""Translates `FileService`."""

import asyncio
import posixpath
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import grpc

from container_runtime import limits
from container_runtime.errors import OffsetOutOfRange
from container_runtime.link import FileMissing, Link
from container_runtime.runtime import Runtime
from container_runtime.servicers import requests
from container_runtime.servicers.context import Context
from container_runtime.servicers.messages import file_message
from container_runtime.supervised import supervised
from workroom.errors import InvalidField
from workroom.pages import page_size, position_of, token_of
from workroom.runtime.v1 import filesystem_pb2 as pb
from workroom.runtime.v1 import filesystem_pb2_grpc as rpc

WRITE_BYTES = 1024 * 1024
DEFAULT_MODE, DEFAULT_DIRECTORY_MODE = 0o644, 0o755


class FileServicer(rpc.FileServiceServicer):
    """Files inside containers over gRPC."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def register(self, server: grpc.aio.Server) -> None:
        """Adds this service to a server."""
        rpc.add_FileServiceServicer_to_server(self, server)

    @asynccontextmanager
    async def _link(self, container_id: str) -> AsyncIterator[Link]:
        """The supervisor link of a container, which is resumed if it is suspended and counts as
        used for as long as the body runs."""
        with supervised(container_id):
            link = await self._runtime.containers.ready(container_id)
            with self._runtime.containers.using(container_id):
                yield link

    async def StatFile(self, request: pb.StatFileRequest, context: Context) -> pb.StatFileResponse:
        path = requests.path("path", request.path)
        async with self._link(request.container_id) as link:
            info = await link.stat(path, root=request.as_root, follow=False)
        return pb.StatFileResponse(file=file_message(info))

    async def ListFiles(
        self, request: pb.ListFilesRequest, context: Context
    ) -> pb.ListFilesResponse:
        path = requests.path("path", request.path)
        size = page_size(request.page_size, limits.FILE_PAGE, limits.FILE_PAGE_MAX)
        after = position_of("files", request.page_token) or b""
        async with self._link(request.container_id) as link:
            page = await link.list_files(path, after=after, limit=size, root=request.as_root)
        return pb.ListFilesResponse(
            files=[
                file_message(replace(info, path=posixpath.join(path, info.path)))
                for info in page.entries
            ],
            next_page_token="" if page.next_name is None else token_of("files", page.next_name),
        )

    async def ReadFile(
        self, request: pb.ReadFileRequest, context: Context
    ) -> AsyncIterator[pb.ReadFileResponse]:
        path = requests.path("path", request.path)
        offset = requests.offset("offset", request.offset)
        length = None
        if request.HasField("limit_bytes"):
            length = requests.offset("limit_bytes", request.limit_bytes)
        root = request.as_root
        async with self._link(request.container_id) as link:
            if offset:
                found = await link.stat(path, root=root)
                _check_offset(offset, found.size)
            chunks = link.read_file(path, offset=offset, length=length, root=root)
            try:
                async for chunk in chunks:
                    yield pb.ReadFileResponse(data=chunk)
            finally:
                await chunks.aclose()
        yield pb.ReadFileResponse(end=True)

    async def WriteFile(
        self, request_iterator: AsyncIterator[pb.WriteFileRequest], context: Context
    ) -> pb.WriteFileResponse:
        first = await anext(request_iterator, None)
        if first is None or first.WhichOneof("part") != "open":
            raise InvalidField("open", "the first message must carry it")
        opening = first.open
        path = requests.path("open.path", opening.path)
        mode = requests.mode("open.mode", opening.mode) if opening.HasField("mode") else None
        async with self._link(opening.container_id) as link:
            info = await link.write_file(
                path,
                _data(request_iterator, context),
                mode=DEFAULT_MODE if mode is None else mode,
                make_parents=opening.make_parents,
                root=opening.as_root,
            )
        return pb.WriteFileResponse(file=file_message(info))

    async def MakeDirectory(
        self, request: pb.MakeDirectoryRequest, context: Context
    ) -> pb.MakeDirectoryResponse:
        path = requests.path("path", request.path)
        mode = requests.mode("mode", request.mode) if request.HasField("mode") else None
        async with self._link(request.container_id) as link:
            await link.mkdir(
                path,
                mode=DEFAULT_DIRECTORY_MODE if mode is None else mode,
                parents=request.make_parents,
                root=request.as_root,
            )
        return pb.MakeDirectoryResponse()

    async def MoveFile(self, request: pb.MoveFileRequest, context: Context) -> pb.MoveFileResponse:
        source = requests.path("source", request.source)
        destination = requests.path("destination", request.destination)
        async with self._link(request.container_id) as link:
            await link.move(source, destination, root=request.as_root)
        return pb.MoveFileResponse()

    async def RemoveFile(
        self, request: pb.RemoveFileRequest, context: Context
    ) -> pb.RemoveFileResponse:
        path = requests.path("path", request.path)
        async with self._link(request.container_id) as link:
            try:
                await link.remove(path, recursive=request.recursive, root=request.as_root)
            except FileMissing:
                pass
        return pb.RemoveFileResponse()


def _check_offset(offset: int, size: int) -> None:
    if offset > size:
        raise OffsetOutOfRange(
            f"offset {offset} is past the file's {size} bytes",
            offset=str(offset),
            total_bytes=str(size),
        )


async def _data(
    messages: AsyncIterator[pb.WriteFileRequest], context: Context
) -> AsyncIterator[bytes]:
    """The content, whole: a caller whose connection broke must not count as one who was done."""
    async for message in messages:
        if message.WhichOneof("part") != "data":
            raise InvalidField("open", "only the first message may carry it")
        if len(message.data) > WRITE_BYTES:
            raise InvalidField("data", f"at most {WRITE_BYTES} bytes are allowed in a message")
        if message.data:
            yield message.data
    # The library ends both in the same way. Only an answer tells: none can be sent to the dead.
    await context.send_initial_metadata(())
    if context.cancelled():
        raise asyncio.CancelledError
