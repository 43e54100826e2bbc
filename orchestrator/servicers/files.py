"""Owns the `FileService` on the wire."""

from collections.abc import AsyncIterator
from hashlib import sha256
from typing import Any

import grpc

from orchestrator.files import Files
from orchestrator.servicers import messages
from orchestrator.servicers.requests import project
from orchestrator.sessions.specs import check_request_id
from orchestrator.store.files import FileStore
from orchestrator.store.pages import PageRequest
from orchestrator.store.requests import RequestId
from workroom.errors import InvalidField
from workroom.orchestrator.v1 import files_pb2 as pb
from workroom.orchestrator.v1 import files_pb2_grpc as rpc
from workroom.rpc.auth import current_principal

MESSAGE_DATA_BYTES = 1024 * 1024

Context = grpc.aio.ServicerContext[Any, Any]


class FileServicer(rpc.FileServiceServicer):
    """Uploaded files for callers."""

    def __init__(self, files: Files, store: FileStore) -> None:
        self._files = files
        self._store = store

    def register(self, server: grpc.aio.Server) -> None:
        rpc.add_FileServiceServicer_to_server(self, server)

    async def UploadFile(
        self, request_iterator: AsyncIterator[pb.UploadFileRequest], context: Context
    ) -> pb.UploadFileResponse:
        parts = aiter(request_iterator)
        first = await anext(parts, None)
        if first is None or first.WhichOneof("part") != "open":
            raise InvalidField("open", "must be the first message")
        asked = first.open
        check_request_id(asked.request_id)

        def request(digest: str) -> RequestId | None:
            if not asked.request_id:
                return None
            whole = sha256(f"{asked.filename}\0{digest}".encode()).hexdigest()
            return RequestId(project(asked.project_id), "files", asked.request_id, whole)

        file = await self._files.upload(
            project(asked.project_id), asked.filename, _data(parts), request
        )
        return pb.UploadFileResponse(file=messages.file(file))

    async def GetFile(self, request: pb.GetFileRequest, context: Context) -> pb.GetFileResponse:
        return pb.GetFileResponse(file=messages.file(await self._store.get(request.file_id)))

    async def ListFiles(
        self, request: pb.ListFilesRequest, context: Context
    ) -> pb.ListFilesResponse:
        wanted = PageRequest(request.page_size, request.page_token)
        page = await self._store.page(current_principal().project_id, wanted)
        return pb.ListFilesResponse(
            files=[messages.file(file) for file in page.entries], next_page_token=page.next_token
        )

    async def DeleteFile(
        self, request: pb.DeleteFileRequest, context: Context
    ) -> pb.DeleteFileResponse:
        await self._files.delete(request.file_id)
        return pb.DeleteFileResponse()


async def _data(parts: AsyncIterator[pb.UploadFileRequest]) -> AsyncIterator[bytes]:
    async for part in parts:
        if part.WhichOneof("part") != "data":
            raise InvalidField("data", "must follow `open` in every message")
        if len(part.data) > MESSAGE_DATA_BYTES:
            raise InvalidField("data", f"more than {MESSAGE_DATA_BYTES} bytes in one message")
        yield part.data
