"""Answers in the runtime's, the proxy's and the reviewer's place, at once and without doing it.

Run by `benchmarks.loop`, as a process of its own: python -m benchmarks.loop_peers ADDRESS
"""

import sys
from collections.abc import AsyncIterator
from typing import Any

import grpc
import uvloop

from workroom.egress.v1 import egress_pb2, egress_pb2_grpc
from workroom.reviewer.v1 import reviewer_pb2, reviewer_pb2_grpc
from workroom.runtime.v1 import (
    containers_pb2,
    containers_pb2_grpc,
    executions_pb2,
    executions_pb2_grpc,
    filesystem_pb2,
    filesystem_pb2_grpc,
)

Context = grpc.aio.ServicerContext[Any, Any]
OUTPUT = b"hello\n"


class Containers(containers_pb2_grpc.ContainerServiceServicer):
    async def CreateContainer(
        self, request: containers_pb2.CreateContainerRequest, context: Context
    ) -> containers_pb2.CreateContainerResponse:
        # Named after the session, so that the measurement can tell whose commands take how long.
        name = request.labels["workroom.session_id"]
        container = containers_pb2.Container(id=f"ctr_{name}")
        return containers_pb2.CreateContainerResponse(container=container)


class Executions(executions_pb2_grpc.ExecutionServiceServicer):
    async def StreamExecutions(
        self,
        request_iterator: AsyncIterator[executions_pb2.StreamExecutionsRequest],
        context: Context,
    ) -> AsyncIterator[executions_pb2.StreamExecutionsResponse]:
        async for request in request_iterator:
            if request.HasField("start"):
                for answer in _answers(request.execution_id):
                    yield answer


class Files(filesystem_pb2_grpc.FileServiceServicer):
    async def MakeDirectory(
        self, request: filesystem_pb2.MakeDirectoryRequest, context: Context
    ) -> filesystem_pb2.MakeDirectoryResponse:
        return filesystem_pb2.MakeDirectoryResponse()

    async def ListFiles(
        self, request: filesystem_pb2.ListFilesRequest, context: Context
    ) -> filesystem_pb2.ListFilesResponse:
        return filesystem_pb2.ListFilesResponse()


class Egress(egress_pb2_grpc.EgressServiceServicer):
    async def AttachContainer(
        self, request: egress_pb2.AttachContainerRequest, context: Context
    ) -> egress_pb2.AttachContainerResponse:
        return egress_pb2.AttachContainerResponse()


class Reviewer(reviewer_pb2_grpc.ReviewerServiceServicer):
    async def ReviewAction(
        self, request: reviewer_pb2.ReviewActionRequest, context: Context
    ) -> reviewer_pb2.ReviewActionResponse:
        allowed = reviewer_pb2.Decision.OUTCOME_ALLOWED
        decision = reviewer_pb2.Decision(id=f"dec_{request.item_id}", outcome=allowed)
        return reviewer_pb2.ReviewActionResponse(decision=decision)


def _answers(name: str) -> list[executions_pb2.StreamExecutionsResponse]:
    execution = executions_pb2.Execution(id=name)
    execution.outcome.exited.code = 0
    execution.stdout.total_bytes = len(OUTPUT)
    output = executions_pb2.OutputChunk(
        stream=executions_pb2.OUTPUT_STREAM_STDOUT, offset=0, data=OUTPUT
    )
    started = executions_pb2.Execution(id=name)
    return [
        executions_pb2.StreamExecutionsResponse(execution_id=name, started=started),
        executions_pb2.StreamExecutionsResponse(execution_id=name, output=output),
        executions_pb2.StreamExecutionsResponse(execution_id=name, ended=execution),
    ]


async def main(address: str) -> None:
    server = grpc.aio.server()
    containers_pb2_grpc.add_ContainerServiceServicer_to_server(Containers(), server)  # type: ignore[abstract]
    executions_pb2_grpc.add_ExecutionServiceServicer_to_server(Executions(), server)  # type: ignore[abstract]
    filesystem_pb2_grpc.add_FileServiceServicer_to_server(Files(), server)  # type: ignore[abstract]
    egress_pb2_grpc.add_EgressServiceServicer_to_server(Egress(), server)  # type: ignore[abstract]
    reviewer_pb2_grpc.add_ReviewerServiceServicer_to_server(Reviewer(), server)  # type: ignore[abstract]
    server.add_insecure_port(address)
    await server.start()
    await server.wait_for_termination()


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1]))
