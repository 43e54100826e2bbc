"""Translates `EgressService`: checks what may be asked, and turns values into messages."""

from collections.abc import AsyncIterator
from typing import Any

import grpc

from egress_proxy.attachments import Attachment, Attachments, Wanted
from egress_proxy.capture.namespaces import Process
from egress_proxy.exceptions import OperatorException
from egress_proxy.explaining import explain
from egress_proxy.names import BadHost, host_from_text
from egress_proxy.policy import Request
from egress_proxy.policy_texts import METHODS, canonical_path
from egress_proxy.servicers.messages import (
    attachment_message,
    decision_message,
    filter_of,
    policy_of,
    record_message,
)
from egress_proxy.traffic_log import TrafficLog
from workroom.egress.v1 import egress_pb2 as pb
from workroom.egress.v1 import egress_pb2_grpc as rpc
from workroom.errors import InvalidField
from workroom.pages import number_of, page_size, token_for
from workroom.rpc.server import Drain

Context = grpc.aio.ServicerContext[Any, Any]

_MAX_ID = 256
_ATTACHMENTS = "attachments"
_TRAFFIC = "traffic"
_WATCH_BATCH = 200


class EgressServicer(rpc.EgressServiceServicer):
    """Attachments, decisions and traffic over gRPC."""

    def __init__(
        self,
        attachments: Attachments,
        traffic: TrafficLog,
        drain: Drain,
        exceptions: tuple[OperatorException, ...] = (),
    ) -> None:
        self._attachments = attachments
        self._traffic = traffic
        self._drain = drain
        self._exceptions = exceptions

    def register(self, server: grpc.aio.Server) -> None:
        """Adds this service to a server."""
        rpc.add_EgressServiceServicer_to_server(self, server)

    async def AttachContainer(
        self, request: pb.AttachContainerRequest, context: Context
    ) -> pb.AttachContainerResponse:
        wanted = Wanted(
            _id("container_id", request.container_id),
            _id("project_id", request.project_id or "default"),
            policy_of(request.policy),
            policy_of(request.bound, "bound") if request.HasField("bound") else None,
            _process(request),
            _id("session_id", request.session_id) if request.session_id else "",
        )
        attachment = await self._attachments.attach(wanted, _expected_revision(request))
        return pb.AttachContainerResponse(attachment=self._message(attachment))

    async def DetachContainer(
        self, request: pb.DetachContainerRequest, context: Context
    ) -> pb.DetachContainerResponse:
        await self._attachments.detach(_id("container_id", request.container_id))
        return pb.DetachContainerResponse()

    async def GetAttachment(
        self, request: pb.GetAttachmentRequest, context: Context
    ) -> pb.GetAttachmentResponse:
        attachment = await self._attachments.get(request.container_id)
        return pb.GetAttachmentResponse(attachment=self._message(attachment))

    async def ListAttachments(
        self, request: pb.ListAttachmentsRequest, context: Context
    ) -> pb.ListAttachmentsResponse:
        size = page_size(request.page_size)
        after = number_of(_ATTACHMENTS, request.page_token)
        found = await self._attachments.page(after, size + 1)
        shown = found[:size]
        more = len(found) > size
        return pb.ListAttachmentsResponse(
            attachments=[self._message(attachment) for _, attachment in shown],
            next_page_token=token_for(_ATTACHMENTS, shown[-1][0]) if more else "",
        )

    async def ExplainDecision(
        self, request: pb.ExplainDecisionRequest, context: Context
    ) -> pb.ExplainDecisionResponse:
        asked = _request(request)
        if request.WhichOneof("by") == "container_id":
            policies = (await self._attachments.get(request.container_id)).policies
        else:
            policies = (policy_of(request.policy),)
            self._attachments.check_offered(policies[0])
        decision = explain(policies, asked, self._exceptions)
        return pb.ExplainDecisionResponse(decision=decision_message(decision))

    async def ListTraffic(
        self, request: pb.ListTrafficRequest, context: Context
    ) -> pb.ListTrafficResponse:
        size = page_size(request.page_size)
        after = number_of(_TRAFFIC, request.page_token) or 0
        found = await self._traffic.page(filter_of(request.filter), after, size + 1)
        shown = found[:size]
        more = len(found) > size
        return pb.ListTrafficResponse(
            records=[record_message(record) for record in shown],
            next_page_token=token_for(_TRAFFIC, shown[-1].id) if more else "",
        )

    async def WatchTraffic(
        self, request: pb.WatchTrafficRequest, context: Context
    ) -> AsyncIterator[pb.WatchTrafficResponse]:
        if request.after_change < 0:
            raise InvalidField("after_change", "must not be negative")
        wanted = filter_of(request.filter)
        after = self._traffic.last_change if request.from_now else request.after_change
        async with self._drain.interrupting():
            while True:
                changed = self._traffic.next_change()
                found = await self._traffic.page(wanted, after, _WATCH_BATCH, by_change=True)
                for record in found:
                    after = record.change
                    yield pb.WatchTrafficResponse(record=record_message(record))
                if not found:
                    await changed.wait()

    def _message(self, attachment: Attachment) -> pb.Attachment:
        captured = self._attachments.is_captured(attachment.container_id)
        return attachment_message(attachment, captured=captured)


def _id(field: str, value: str) -> str:
    if not 1 <= len(value) <= _MAX_ID:
        raise InvalidField(field, f"must have 1 to {_MAX_ID} characters")
    if not value.isascii() or not value.isprintable():
        raise InvalidField(field, "must be of printable ASCII characters")
    return value


def _process(request: pb.AttachContainerRequest) -> Process | None:
    if not request.HasField("process"):
        return None
    process = request.process
    if not 1 <= process.pid < 2**31:
        raise InvalidField("process.pid", "is not the number of a process")
    if process.start_ticks < 1:
        raise InvalidField("process.start_ticks", "must be positive")
    return Process(process.pid, process.start_ticks)


def _expected_revision(request: pb.AttachContainerRequest) -> int | None:
    if not request.HasField("expected_revision"):
        return None
    if request.expected_revision < 0:
        raise InvalidField("expected_revision", "must not be negative")
    return request.expected_revision


def _request(message: pb.ExplainDecisionRequest) -> Request:
    if message.WhichOneof("by") is None:
        raise InvalidField("by", "needs `container_id` or `policy`")
    try:
        host = host_from_text(message.host)
    except BadHost as error:
        raise InvalidField("host", str(error)) from None
    if not 0 <= message.port <= 65535:
        raise InvalidField("port", "is not between 1 and 65535")
    if message.method and message.method not in METHODS:
        raise InvalidField("method", f"is not known; allowed: {', '.join(sorted(METHODS))}")
    if message.path and not message.path.startswith("/"):
        raise InvalidField("path", "must begin with `/`")
    path = canonical_path(message.path) if message.path else None
    return Request(host, message.port or 443, message.method or None, path)
