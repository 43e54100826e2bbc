"""A runtime under test: served on a unix socket, called through real stubs."""

import asyncio
import atexit
import hashlib
import secrets
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.duration_pb2 import Duration

from container_runtime.__main__ import SERVICES, registrations
from container_runtime.config import Config
from container_runtime.docker import DockerEngine
from container_runtime.engine import Engine
from container_runtime.interpreter import Bundle, collect
from container_runtime.runtime import Runtime, now, running
from container_runtime.volumes import kernel
from workroom.paths import Home
from workroom.rpc.channel import open_channel
from workroom.rpc.drain import Drain
from workroom.rpc.server import serving
from workroom.runtime.v1 import containers_pb2 as cpb
from workroom.runtime.v1 import containers_pb2_grpc as crpc
from workroom.runtime.v1 import executions_pb2 as epb
from workroom.runtime.v1 import executions_pb2_grpc as erpc
from workroom.runtime.v1 import filesystem_pb2 as fpb
from workroom.runtime.v1 import filesystem_pb2_grpc as frpc

PATIENCE = 20.0


class Calls:
    """What a client of a runtime does, in short."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.containers = crpc.ContainerServiceStub(channel)
        self.executions = erpc.ExecutionServiceStub(channel)
        self.files = frpc.FileServiceStub(channel)

    async def create(self, **fields) -> cpb.Container:
        request = cpb.CreateContainerRequest(size=cpb.Container.SIZE_SMALL)
        request.MergeFrom(cpb.CreateContainerRequest(**fields))
        return (await self.containers.CreateContainer(request, timeout=PATIENCE)).container

    async def delete(self, container_id: str) -> None:
        request = cpb.DeleteContainerRequest(container_id=container_id)
        await self.containers.DeleteContainer(request, timeout=PATIENCE)

    async def get(self, container_id: str) -> cpb.Container:
        request = cpb.GetContainerRequest(container_id=container_id)
        return (await self.containers.GetContainer(request, timeout=PATIENCE)).container

    async def run(self, container_id: str, script: str, *, stdin: bytes = b"", **fields):
        request = epb.RunRequest(start=start(container_id, script, **fields), stdin=stdin)
        return await self.executions.Run(request, timeout=PATIENCE)

    async def start(self, container_id: str, script: str, **fields) -> epb.Execution:
        request = start(container_id, script, **fields)
        return (await self.executions.StartExecution(request, timeout=PATIENCE)).execution

    async def execution(self, execution_id: str) -> epb.Execution:
        request = epb.GetExecutionRequest(execution_id=execution_id)
        return (await self.executions.GetExecution(request, timeout=PATIENCE)).execution

    async def wait(self, execution_id: str) -> epb.Execution:
        request = epb.WaitExecutionRequest(execution_id=execution_id)
        return (await self.executions.WaitExecution(request, timeout=PATIENCE)).execution

    async def watch(self, execution_id: str, stdout: int = 0, stderr: int = 0) -> "Watched":
        request = epb.WatchExecutionRequest(
            execution_id=execution_id, stdout_offset=stdout, stderr_offset=stderr
        )
        seen = Watched()
        async for event in self.executions.WatchExecution(request, timeout=PATIENCE):
            seen.take(event)
        return seen

    async def write(self, container_id: str, path: str | bytes, data: bytes, **fields):
        opening = fpb.WriteFileRequest.Open(
            container_id=container_id, path=file_path(path), **fields
        )

        async def parts() -> AsyncIterator[fpb.WriteFileRequest]:
            yield fpb.WriteFileRequest(open=opening)
            for at in range(0, len(data), 2**20):
                yield fpb.WriteFileRequest(data=data[at : at + 2**20])

        return (await self.files.WriteFile(parts(), timeout=PATIENCE)).file

    async def read(self, container_id: str, path: str | bytes, **fields) -> bytes:
        request = fpb.ReadFileRequest(container_id=container_id, path=file_path(path), **fields)
        parts, ends = [], 0
        async for message in self.files.ReadFile(request, timeout=PATIENCE):
            assert not ends
            parts.append(message.data)
            ends += message.end
        assert ends == 1
        return b"".join(parts)


class Watched:
    """What a watcher saw, checked for order."""

    def __init__(self) -> None:
        self.out = {epb.OUTPUT_STREAM_STDOUT: b"", epb.OUTPUT_STREAM_STDERR: b""}
        self.offsets: dict[int, int] = {}
        self.gaps: list[epb.OutputGap] = []
        self.ended: epb.Execution | None = None

    def take(self, event) -> None:
        assert self.ended is None, "nothing follows the end"
        match event.WhichOneof("event"):
            case "output":
                chunk = event.output
                assert chunk.offset == self.offsets.get(chunk.stream, chunk.offset)
                assert 0 < len(chunk.data) <= 256 * 1024
                self.out[chunk.stream] += chunk.data
                self.offsets[chunk.stream] = chunk.offset + len(chunk.data)
            case "gap":
                self.gaps.append(event.gap)
                self.offsets[event.gap.stream] = event.gap.offset + event.gap.length
            case "ended":
                self.ended = event.ended

    @property
    def stdout(self) -> bytes:
        return self.out[epb.OUTPUT_STREAM_STDOUT]

    @property
    def stderr(self) -> bytes:
        return self.out[epb.OUTPUT_STREAM_STDERR]


@dataclass
class Node:
    """A runtime in this process and a client of it."""

    home: Home
    runtime: Runtime
    calls: Calls
    address: str
    engine: Engine


def start(container_id: str, script: str | list[str], **fields) -> epb.StartExecutionRequest:
    """A start of a script, or of a program if it is a list; fields of the command may be mixed
    in."""
    names = epb.Command.DESCRIPTOR.fields_by_name
    inside = {key: fields.pop(key) for key in tuple(fields) if key in names}
    command = epb.Command(**inside)
    if isinstance(script, str):
        command.script = script
    else:
        command.argv.args.extend(script)
    return epb.StartExecutionRequest(container_id=container_id, command=command, **fields)


def seconds(value: float) -> Duration:
    """A span of time."""
    message = Duration()
    message.FromTimedelta(timedelta(seconds=value))
    return message


def file_path(path: str | bytes) -> fpb.FilePath:
    """A name."""
    return fpb.FilePath(text=path) if isinstance(path, str) else fpb.FilePath(raw=path)


def digest(data: bytes) -> str:
    """For comparing long things."""
    return hashlib.sha256(data).hexdigest()


@cache
def collected() -> Bundle:
    """The interpreter that all supervisors of a run share."""
    directory = Path(tempfile.mkdtemp(prefix="wr-python-"))
    atexit.register(shutil.rmtree, directory)
    return collect(directory)


@contextmanager
def new_home() -> Iterator[Home]:
    """A home on a short path, as socket names need."""
    root = Path(tempfile.mkdtemp(prefix="wr-"))
    home = Home(root / "h").create()
    try:
        yield home
    finally:
        for mounted in kernel.mounts():
            if root in mounted.target.parents:
                kernel.unmount(mounted.target)
        shutil.rmtree(root)


@asynccontextmanager
async def node_on(home: Home, engine: Engine, clock=now, **settings) -> AsyncIterator[Node]:
    """A runtime on `home`, served."""
    bundle = await asyncio.to_thread(collected)
    defaults: dict[str, Any] = {
        "node_id": "node-under-test",
        "min_free_bytes": 0,
        "bound_disks": isinstance(engine, DockerEngine),
    }
    config = Config(**(defaults | settings))
    drain = Drain()
    address = f"unix:{home.run}/{secrets.token_hex(4)}.sock"
    async with (
        running(config, home, engine, clock, bundle) as runtime,
        serving(
            registrations(runtime, drain),
            config.model_copy(update={"address": address}).listener(home),
            services=SERVICES,
            grace=timedelta(seconds=2),
            drain=drain,
        ),
        open_channel(address) as channel,
    ):
        yield Node(home, runtime, Calls(channel), address, engine)


async def until(condition, limit: float = PATIENCE) -> None:
    """Wait until `condition()` is true."""
    async with asyncio.timeout(limit):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


def reason(error: grpc.aio.AioRpcError) -> str:
    """`ErrorInfo.reason` of a failed call."""
    return details(error).reason


def details(error: grpc.aio.AioRpcError):
    """`ErrorInfo` of a failed call."""
    from google.rpc import error_details_pb2
    from grpc_status import rpc_status

    info = error_details_pb2.ErrorInfo()
    for detail in rpc_status.from_call(error).details:
        if detail.Unpack(info):
            return info
    raise AssertionError("the status carries no ErrorInfo")
