"""Owns a stand-in for the egress proxy: remembers who is attached and steers nothing."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc

from tests.orchestrator.fake_files import Refused, answering
from workroom.egress.v1 import egress_pb2 as pb
from workroom.egress.v1 import egress_pb2_grpc as rpc


class FakeEgress(rpc.EgressServiceServicer):
    """Offers access `disabled`, as the proxy does where nothing can be captured."""

    def __init__(self, directory: Path) -> None:
        self.address = f"unix:{directory}/egress.sock"
        self.attached: dict[str, pb.Attachment] = {}

    @asynccontextmanager
    async def serving(self) -> AsyncIterator["FakeEgress"]:
        server = grpc.aio.server()
        rpc.add_EgressServiceServicer_to_server(self, server)
        server.add_insecure_port(self.address)
        await server.start()
        try:
            yield self
        finally:
            await server.stop(None)

    async def AttachContainer(self, request, context):
        if request.policy.access not in (0, pb.Policy.ACCESS_DISABLED):
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "policy.access: not offered")
        attachment = pb.Attachment(
            container_id=request.container_id, policy=request.policy, revision=1
        )
        self.attached[request.container_id] = attachment
        return pb.AttachContainerResponse(attachment=attachment)

    async def ExplainDecision(self, request, context):
        async with answering(context):
            if request.policy.access not in (0, pb.Policy.ACCESS_DISABLED):
                raise Refused("INVALID_ARGUMENT", "NOT_SUPPORTED", "policy.access")
            return pb.ExplainDecisionResponse()

    async def DetachContainer(self, request, context):
        self.attached.pop(request.container_id, None)
        return pb.DetachContainerResponse()

    async def GetAttachment(self, request, context):
        if request.container_id not in self.attached:
            await context.abort(grpc.StatusCode.NOT_FOUND, "not attached")
        return pb.GetAttachmentResponse(attachment=self.attached[request.container_id])

    async def ListAttachments(self, request, context):
        return pb.ListAttachmentsResponse(attachments=self.attached.values())

    async def ListTraffic(self, request, context):
        return pb.ListTrafficResponse()

    async def WatchTraffic(self, request, context):
        for record in ():
            yield pb.WatchTrafficResponse(record=record)
