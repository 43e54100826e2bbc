"""Owns a stand-in for the runtime: its services over local processes in a temporary directory.

Scripts say `/workspace`, which is replaced by the directory that stands for it. Nothing is
isolated and root is whoever runs the tests. What it answers is held against the real runtime by
the tests that run on both.
"""

import asyncio
import itertools
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc

from tests.orchestrator.fake_executions import FakeExecution, Watch
from tests.orchestrator.fake_files import Files, Refused, answering
from workroom.runtime.v1 import containers_pb2
from workroom.runtime.v1 import containers_pb2_grpc as containers_rpc
from workroom.runtime.v1 import executions_pb2 as pb
from workroom.runtime.v1 import executions_pb2_grpc as rpc
from workroom.runtime.v1 import filesystem_pb2_grpc as filesystem_rpc


class FakeRuntime:
    """Containers and executions that outlive the server, as the real ones do."""

    def __init__(self, directory: Path) -> None:
        self.address = f"unix:{directory}/runtime.sock"
        self.containers: dict[str, containers_pb2.CreateContainerResponse] = {}
        self.requests: dict[str, containers_pb2.CreateContainerRequest] = {}
        self.executions: dict[str, FakeExecution] = {}
        self.starts: list[str] = []
        self.refuse_images: set[str] = set()
        self.events: list[containers_pb2.ContainerEvent] = []
        self.happened = asyncio.Event()
        self.numbers = itertools.count()
        self._directory = directory
        self._tasks = asyncio.TaskGroup()
        self._runs: list[asyncio.Task[None]] = []
        self._server: grpc.aio.Server | None = None

    @asynccontextmanager
    async def serving(self) -> AsyncIterator["FakeRuntime"]:
        """Listens on `address`; ends every command when the body is left."""
        async with self._tasks:
            await self.start()
            try:
                yield self
            finally:
                await self.stop()
                for task in self._runs:
                    task.cancel()

    def suspend(self, container_id: str) -> None:
        """Put a container to sleep, as the runtime does with one that is idle."""
        container = self.containers[container_id].container
        container.state = containers_pb2.Container.STATE_SUSPENDED
        event = containers_pb2.ContainerEvent(
            container_id=container_id, kind=containers_pb2.ContainerEvent.KIND_SUSPENDED
        )
        self.events.append(event)
        self.happened.set()

    async def start(self) -> None:
        self._server = grpc.aio.server()
        rpc.add_ExecutionServiceServicer_to_server(
            _Executions(self),  # type: ignore[abstract]
            self._server,
        )
        containers_rpc.add_ContainerServiceServicer_to_server(
            _Containers(self),  # type: ignore[abstract]
            self._server,
        )
        filesystem_rpc.add_FileServiceServicer_to_server(
            Files(self.root),  # type: ignore[abstract]
            self._server,
        )
        self._server.add_insecure_port(self.address)
        await self._server.start()

    async def stop(self) -> None:
        """Cuts every call; commands go on."""
        if self._server is not None:
            await self._server.stop(None)
            self._server = None

    def root(self, container_id: str) -> Path:
        return self._directory / container_id

    def path(self, container_id: str, name: str) -> Path:
        """The local file that stands for `name`."""
        return self.root(container_id) / name.lstrip("/")

    def execution(self, request: pb.StartExecutionRequest) -> FakeExecution:
        """The request's execution; started, unless it was before."""
        if request.container_id not in self.containers:
            raise Refused("NOT_FOUND", "CONTAINER_NOT_FOUND", request.container_id)
        if not request.execution_id:
            request.execution_id = f"exec_{next(self.numbers)}"
        known = self.executions.get(request.execution_id)
        if known is not None:
            if known.request.command != request.command:
                raise Refused("ALREADY_EXISTS", "EXECUTION_EXISTS", request.execution_id)
            return known
        variables = {v.name: v.value for v in self.requests[request.container_id].environment}
        execution = FakeExecution(request, self.root(request.container_id), variables)
        self.executions[request.execution_id] = execution
        self.starts.append(request.execution_id)
        self._runs.append(self._tasks.create_task(execution.run()))
        return execution

    def known(self, execution_id: str) -> FakeExecution:
        if execution_id not in self.executions:
            raise Refused("NOT_FOUND", "EXECUTION_NOT_FOUND", execution_id)
        return self.executions[execution_id]


class _Executions(rpc.ExecutionServiceServicer):
    def __init__(self, runtime: FakeRuntime) -> None:
        self._runtime = runtime

    async def StartExecution(self, request, context):
        async with answering(context):
            execution = self._runtime.execution(request)
            return pb.StartExecutionResponse(execution=execution.message())

    async def Run(self, request, context):
        async with answering(context):
            request.start.command.open_stdin = True
            execution = self._runtime.execution(request.start)
            execution.feed(request.stdin)
            await _ended(execution)
            answer = pb.RunResponse(execution=execution.message())
            limit = request.output_limit_bytes or 64 * 1024
            for stream, bounded in ((pb.OUTPUT_STREAM_STDOUT, answer.stdout),
                                    (pb.OUTPUT_STREAM_STDERR, answer.stderr)):  # fmt: skip
                spool = execution.spools[stream]
                if spool.total <= limit:
                    bounded.head = spool.read(0, limit)
                else:
                    bounded.head = spool.read(0, limit // 2)
                    bounded.tail = spool.read(spool.total - limit // 2, limit // 2)
                    bounded.omitted_bytes = spool.total - 2 * (limit // 2)
            return answer

    async def GetExecution(self, request, context):
        async with answering(context):
            found = self._runtime.known(request.execution_id)
            return pb.GetExecutionResponse(execution=found.message())

    async def CancelExecution(self, request, context):
        async with answering(context):
            execution = self._runtime.known(request.execution_id)
            execution.cancel()
            await _ended(execution)
            return pb.CancelExecutionResponse(execution=execution.message())

    async def StreamExecutions(  # type: ignore[override]
        self, request_iterator, context
    ):
        watches: dict[str, tuple[Watch, asyncio.Task[None]]] = {}
        lock = asyncio.Lock()

        async def send(answer: pb.StreamExecutionsResponse) -> None:
            async with lock:
                await context.write(answer)

        async def follow(watch: Watch) -> None:
            while True:
                answer = await watch.next()
                if answer.HasField("ended"):
                    watches.pop(answer.execution_id, None)
                try:
                    await send(answer)
                except Exception:  # the caller is gone
                    return
                if answer.HasField("ended"):
                    return

        async def act(request: pb.StreamExecutionsRequest) -> None:
            kind = request.WhichOneof("action")
            name = request.execution_id
            if kind == "start":
                request.start.start.execution_id = name
                execution = self._runtime.execution(request.start.start)
                await send(pb.StreamExecutionsResponse(execution_id=name,
                                                       started=execution.message()))  # fmt: skip
                watch = Watch(execution, (0, 0), request.start.initial_credit_bytes)
                watches[name] = watch, tasks.create_task(follow(watch))
            elif kind == "watch":
                asked = request.watch
                offsets = (asked.stdout_offset, asked.stderr_offset)
                watch = Watch(self._runtime.known(name), offsets, asked.initial_credit_bytes)
                watches[name] = watch, tasks.create_task(follow(watch))
            elif kind == "credit" and name in watches:
                watches[name][0].add_credit(request.credit.bytes)
            elif kind == "unwatch" and name in watches:
                watches.pop(name)[1].cancel()
            elif kind == "cancel":
                self._runtime.known(name).cancel()

        async with asyncio.TaskGroup() as tasks:
            async for request in request_iterator:
                try:
                    await act(request)
                except Refused as refused:
                    failed = pb.RequestFailed(
                        code=refused.code.value[0], message=str(refused), reason=refused.reason
                    )
                    await send(pb.StreamExecutionsResponse(
                        execution_id=request.execution_id, failed=failed))  # fmt: skip


async def _ended(execution: FakeExecution) -> None:
    while execution.outcome is None:
        await execution.changed.wait()


class _Containers(containers_rpc.ContainerServiceServicer):
    def __init__(self, runtime: FakeRuntime) -> None:
        self._runtime = runtime

    async def CreateContainer(self, request, context):
        async with answering(context):
            if request.image in self._runtime.refuse_images:
                raise Refused("NOT_FOUND", "IMAGE_NOT_FOUND", request.image)
            return self._create(request)

    def _create(
        self, request: containers_pb2.CreateContainerRequest
    ) -> containers_pb2.CreateContainerResponse:
        runtime = self._runtime
        for name, earlier in runtime.requests.items():
            if request.request_id and earlier.request_id == request.request_id:
                return runtime.containers[name]
        container = containers_pb2.Container(
            id=f"ctr_{next(runtime.numbers)}", project_id=request.project_id or "default",
            image=request.image or "base", state=containers_pb2.Container.STATE_ACTIVE,
            labels=request.labels,
        )  # fmt: skip
        runtime.path(container.id, "workspace").mkdir(parents=True)
        runtime.path(container.id, "tmp").mkdir()
        runtime.requests[container.id] = request
        runtime.containers[container.id] = containers_pb2.CreateContainerResponse(
            container=container
        )
        return runtime.containers[container.id]

    async def GetContainer(self, request, context):
        async with answering(context):
            if request.container_id not in self._runtime.containers:
                raise Refused("NOT_FOUND", "CONTAINER_NOT_FOUND", request.container_id)
            found = self._runtime.containers[request.container_id].container
            return containers_pb2.GetContainerResponse(container=found)

    async def ResumeContainer(self, request, context):
        async with answering(context):
            if request.container_id not in self._runtime.containers:
                raise Refused("NOT_FOUND", "CONTAINER_NOT_FOUND", request.container_id)
            found = self._runtime.containers[request.container_id].container
            found.state = containers_pb2.Container.STATE_ACTIVE
            return containers_pb2.ResumeContainerResponse(container=found)

    async def WatchContainerEvents(self, request, context):
        seen = len(self._runtime.events)
        while True:
            for event in self._runtime.events[seen:]:
                seen += 1
                yield containers_pb2.WatchContainerEventsResponse(event=event)
            self._runtime.happened.clear()
            await self._runtime.happened.wait()

    async def ListContainers(self, request, context):
        found = [answer.container for answer in self._runtime.containers.values()]
        wanted = dict(request.labels).items()
        kept = [container for container in found if wanted <= dict(container.labels).items()]
        start, size = int(request.page_token or 0), request.page_size or 20
        following = str(start + size) if start + size < len(kept) else ""
        return containers_pb2.ListContainersResponse(
            containers=kept[start : start + size], next_page_token=following
        )

    async def DeleteContainer(self, request, context):
        if self._runtime.containers.pop(request.container_id, None) is not None:
            for execution in self._runtime.executions.values():
                if execution.request.container_id == request.container_id:
                    execution.cancel()
                    await _ended(execution)
            self._runtime.requests.pop(request.container_id)
            shutil.rmtree(self._runtime.root(request.container_id))
        return containers_pb2.DeleteContainerResponse()

    async def GetCapabilities(self, request, context):
        return containers_pb2.GetCapabilitiesResponse(node_id="fake", default_image="base")
