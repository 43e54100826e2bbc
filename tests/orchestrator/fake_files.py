"""Owns the files of the runtime's stand-in, and how its services refuse."""

import os
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NoReturn

import grpc
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from workroom.runtime.v1 import filesystem_pb2
from workroom.runtime.v1 import filesystem_pb2_grpc as filesystem_rpc

Context = grpc.aio.ServicerContext[Any, Any]


class Refused(Exception):
    def __init__(self, code: str, reason: str, about: str) -> None:
        super().__init__(reason)
        self.code, self.reason, self.about = grpc.StatusCode[code], reason, about

    async def abort(self, context: Context) -> NoReturn:
        status = status_pb2.Status(code=self.code.value[0], message=f"{self.reason}: {self.about}")
        info = error_details_pb2.ErrorInfo(domain="workroom", reason=self.reason)
        if self.code is grpc.StatusCode.INVALID_ARGUMENT:
            info.metadata["field"] = self.about
        status.details.add().Pack(info)
        await context.abort_with_status(rpc_status.to_status(status))
        raise AssertionError("aborted")


@asynccontextmanager
async def answering(context: Context) -> AsyncIterator[None]:
    try:
        yield
    except Refused as refused:
        await refused.abort(context)
    except FileNotFoundError as error:
        await Refused("NOT_FOUND", "FILE_NOT_FOUND", str(error)).abort(context)


class Files(filesystem_rpc.FileServiceServicer):
    """The files below `root(container_id)`."""

    def __init__(self, root: Callable[[str], Path]) -> None:
        self._root = root

    def _info(self, container_id: str, path: Path) -> filesystem_pb2.FileInfo:
        stat, kinds = path.lstat(), filesystem_pb2.FileInfo
        kind = kinds.KIND_DIRECTORY if path.is_dir() else kinds.KIND_REGULAR
        name = os.fsencode(f"/{path.relative_to(self._root(container_id))}")
        info = filesystem_pb2.FileInfo(size_bytes=stat.st_size, mode=stat.st_mode & 0o7777,
                                       kind=kinds.KIND_SYMBOLIC_LINK if path.is_symlink()
                                       else kind)  # fmt: skip
        try:
            info.path.text = name.decode()
        except UnicodeDecodeError:
            info.path.raw = name
        return info

    def _path(self, container_id: str, path: filesystem_pb2.FilePath) -> Path:
        name = path.text or os.fsdecode(path.raw)
        return self._root(container_id) / name.lstrip("/")

    async def StatFile(self, request, context):
        async with answering(context):
            path = self._path(request.container_id, request.path)
            info = self._info(request.container_id, path)
            return filesystem_pb2.StatFileResponse(file=info)

    async def ListFiles(self, request, context):
        async with answering(context):
            names = sorted(self._path(request.container_id, request.path).iterdir())
            start, size = int(request.page_token or 0), request.page_size or 100
            files = [self._info(request.container_id, n) for n in names[start : start + size]]
            following = str(start + size) if start + size < len(names) else ""
            return filesystem_pb2.ListFilesResponse(files=files, next_page_token=following)

    async def ReadFile(self, request, context):
        async with answering(context):
            data = self._path(request.container_id, request.path).read_bytes()[request.offset :]
            for start in range(0, len(data), 64 * 1024):
                yield filesystem_pb2.ReadFileResponse(data=data[start : start + 64 * 1024])
            yield filesystem_pb2.ReadFileResponse(end=True)

    async def WriteFile(self, request_iterator, context):
        async with answering(context):
            requests = [request async for request in request_iterator]
            opened, data = requests[0].open, b"".join(r.data for r in requests[1:])
            path = self._path(opened.container_id, opened.path)
            if opened.make_parents:
                path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
            path.chmod(opened.mode if opened.HasField("mode") else 0o644)
            info = self._info(opened.container_id, path)
            return filesystem_pb2.WriteFileResponse(file=info)

    async def MakeDirectory(self, request, context):
        async with answering(context):
            path = self._path(request.container_id, request.path)
            path.mkdir(parents=request.make_parents, exist_ok=True)
            return filesystem_pb2.MakeDirectoryResponse()

    async def RemoveFile(self, request, context):
        path = self._path(request.container_id, request.path)
        if path.is_dir() and request.recursive:
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
        return filesystem_pb2.RemoveFileResponse()
