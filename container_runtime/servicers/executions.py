"""Translates `ExecutionService`."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta

import grpc

from container_runtime import limits
from container_runtime.execution import Chunk, Execution, MissingRange, Watch, check_offset
from container_runtime.model import Stream
from container_runtime.output import BoundedOutput, bounded_output
from container_runtime.records import ExecutionRecord
from container_runtime.runtime import Runtime
from container_runtime.servicers import requests
from container_runtime.servicers.context import Context
from container_runtime.servicers.messages import execution_message, fill_chunk, gap_message
from container_runtime.servicers.multiplex import Multiplex
from container_runtime.spool import Gap
from container_runtime.stdin import write_stdin
from workroom.pages import number_of, page_size, token_for
from workroom.rpc.drain import Drain
from workroom.runtime.v1 import executions_pb2 as pb
from workroom.runtime.v1 import executions_pb2_grpc as rpc


class ExecutionServicer(rpc.ExecutionServiceServicer):
    """Executions over gRPC."""

    def __init__(self, runtime: Runtime, drain: Drain) -> None:
        self._runtime = runtime
        self._executions = runtime.executions
        self._drain = drain

    def register(self, server: grpc.aio.Server) -> None:
        """Adds this service to a server."""
        rpc.add_ExecutionServiceServicer_to_server(self, server)

    async def StartExecution(
        self, request: pb.StartExecutionRequest, context: Context
    ) -> pb.StartExecutionResponse:
        execution = await self._runtime.start(requests.execution_request(request))
        return pb.StartExecutionResponse(execution=execution_message(execution.record()))

    async def Run(self, request: pb.RunRequest, context: Context) -> pb.RunResponse:
        requests.stdin_data("stdin", request.stdin)
        limit = requests.at_most(
            "output_limit_bytes",
            request.output_limit_bytes,
            limits.OUTPUT_BYTES,
            limits.OUTPUT_BYTES_MAX,
        )
        patience = requests.wait_span(request, "yield_time")
        command = requests.execution_request(
            request.start, field="start.", stdin=bool(request.stdin)
        )
        execution = await self._runtime.run(command, request.stdin)
        await self._wait(execution, patience)
        stdout, stderr = (bounded_output(execution.spools[each], limit) for each in Stream)
        return pb.RunResponse(
            execution=execution_message(execution.record()),
            stdout=_bounded(stdout),
            stderr=_bounded(stderr),
        )

    async def _wait(self, execution: Execution, patience: timedelta | None) -> None:
        """Until an execution ends, `patience` is over, or the server drains."""
        if execution.over:
            return
        seconds = None if patience is None else patience.total_seconds()
        async with self._drain.interrupting():
            try:
                async with asyncio.timeout(seconds):
                    await execution.wait()
            except TimeoutError:
                pass

    async def GetExecution(
        self, request: pb.GetExecutionRequest, context: Context
    ) -> pb.GetExecutionResponse:
        execution = await self._executions.get(request.execution_id)
        return pb.GetExecutionResponse(execution=execution_message(execution.record()))

    async def ListExecutions(
        self, request: pb.ListExecutionsRequest, context: Context
    ) -> pb.ListExecutionsResponse:
        size = page_size(request.page_size)
        scope = f"executions/{request.container_id}"
        after = number_of(scope, request.page_token) or 0
        self._runtime.containers.get(request.container_id)
        found = await self._executions.list(request.container_id, after, size + 1)
        page = found[:size]
        token = token_for(scope, page[-1][0]) if len(found) > size else ""
        return pb.ListExecutionsResponse(
            executions=[execution_message(record) for _, record in page], next_page_token=token
        )

    async def WaitExecution(
        self, request: pb.WaitExecutionRequest, context: Context
    ) -> pb.WaitExecutionResponse:
        patience = requests.wait_span(request, "max_wait")
        execution = await self._executions.get(request.execution_id)
        await self._wait(execution, patience)
        return pb.WaitExecutionResponse(execution=execution_message(execution.record()))

    async def WatchExecution(
        self, request: pb.WatchExecutionRequest, context: Context
    ) -> AsyncIterator[pb.WatchExecutionResponse]:
        stdout = requests.offset("stdout_offset", request.stdout_offset)
        stderr = requests.offset("stderr_offset", request.stderr_offset)
        execution = await self._executions.get(request.execution_id)
        watch = Watch(execution, stdout, stderr)
        news = asyncio.Event()
        execution.listen(news.set)
        try:
            while True:
                news.clear()
                while (found := watch.next()) is not None:
                    self._drain.check()
                    yield _watched(found)
                    if isinstance(found, ExecutionRecord):
                        return
                async with self._drain.interrupting():
                    await news.wait()
        finally:
            execution.unlisten(news.set)
            watch.close()

    async def ReadOutput(
        self, request: pb.ReadOutputRequest, context: Context
    ) -> pb.ReadOutputResponse:
        stream = requests.output_stream(request.stream)
        offset = requests.offset("offset", request.offset)
        limit = requests.at_most(
            "limit_bytes", request.limit_bytes, limits.OUTPUT_BYTES, limits.OUTPUT_BYTES_MAX
        )
        execution = await self._executions.get(request.execution_id)
        check_offset(execution, stream, offset)
        spool = execution.spools[stream]
        found = spool.read(offset, limit)
        behind = offset + (found.length if isinstance(found, Gap) else len(found))
        spool.consumed(behind)
        message = pb.ReadOutputResponse(end=spool.finished and behind >= spool.total)
        if isinstance(found, Gap):
            gap = MissingRange(stream, found.offset, found.length)
            message.gap.CopyFrom(gap_message(gap))
        else:
            fill_chunk(message.output, Chunk(stream, offset, found))
        return message

    async def WriteStdin(
        self, request: pb.WriteStdinRequest, context: Context
    ) -> pb.WriteStdinResponse:
        offset = requests.offset("offset", request.offset)
        requests.stdin_data("data", request.data)
        accepted = await write_stdin(
            self._executions, request.execution_id, offset, request.data, request.end
        )
        return pb.WriteStdinResponse(accepted_offset=accepted)

    async def SignalExecution(
        self, request: pb.SignalExecutionRequest, context: Context
    ) -> pb.SignalExecutionResponse:
        signal = requests.signal_number(request.signal)
        await self._executions.signal(request.execution_id, signal)
        return pb.SignalExecutionResponse()

    async def CancelExecution(
        self, request: pb.CancelExecutionRequest, context: Context
    ) -> pb.CancelExecutionResponse:
        execution = await self._executions.cancel(request.execution_id)
        return pb.CancelExecutionResponse(execution=execution_message(execution.record()))

    async def ResizeTerminal(
        self, request: pb.ResizeTerminalRequest, context: Context
    ) -> pb.ResizeTerminalResponse:
        size = requests.terminal(request.terminal)
        await self._executions.resize(request.execution_id, size)
        return pb.ResizeTerminalResponse()

    async def StreamExecutions(
        self,
        request_iterator: AsyncIterator[pb.StreamExecutionsRequest],
        context: Context,
    ) -> AsyncIterator[pb.StreamExecutionsResponse]:
        async with Multiplex(self._runtime, self._drain, request_iterator) as multiplex:
            while (message := await multiplex.next()) is not None:
                yield message


def _watched(found: Chunk | MissingRange | ExecutionRecord) -> pb.WatchExecutionResponse:
    match found:
        case Chunk():
            message = pb.WatchExecutionResponse()
            fill_chunk(message.output, found)
            return message
        case MissingRange():
            return pb.WatchExecutionResponse(gap=gap_message(found))
        case ExecutionRecord():
            return pb.WatchExecutionResponse(ended=execution_message(found))


def _bounded(output: BoundedOutput) -> pb.BoundedOutput:
    return pb.BoundedOutput(head=output.head, omitted_bytes=output.omitted, tail=output.tail)
