"""Translates `EgressService`: checks what may be asked, and turns values into messages."""

from typing import Any

import grpc

from egress_proxy.attachments import Attachment, Attachments
from egress_proxy.policy import Access, Policy
from workroom.egress.v1 import egress_pb2 as pb
from workroom.egress.v1 import egress_pb2_grpc as rpc
from workroom.errors import InvalidField
from workroom.pages import number_of, page_size, token_for

Context = grpc.aio.ServicerContext[Any, Any]

_MAX_ID = 256
_SCOPE = "attachments"
_ACCESS = {
    pb.Policy.ACCESS_UNSPECIFIED: Access.DISABLED,
    pb.Policy.ACCESS_DISABLED: Access.DISABLED,
    pb.Policy.ACCESS_RESTRICTED: Access.RESTRICTED,
    pb.Policy.ACCESS_ENABLED: Access.ENABLED,
}
_ACCESS_MESSAGES = {
    Access.DISABLED: pb.Policy.ACCESS_DISABLED,
    Access.RESTRICTED: pb.Policy.ACCESS_RESTRICTED,
    Access.ENABLED: pb.Policy.ACCESS_ENABLED,
}


class EgressServicer(rpc.EgressServiceServicer):
    """Attachments over gRPC."""

    def __init__(self, attachments: Attachments) -> None:
        self._attachments = attachments

    def register(self, server: grpc.aio.Server) -> None:
        """Adds this service to a server."""
        rpc.add_EgressServiceServicer_to_server(self, server)

    async def AttachContainer(
        self, request: pb.AttachContainerRequest, context: Context
    ) -> pb.AttachContainerResponse:
        attachment = await self._attachments.attach(
            _container_id(request.container_id),
            _project_id(request.project_id),
            policy_of(request.policy),
            _expected_revision(request),
        )
        return pb.AttachContainerResponse(attachment=attachment_message(attachment))

    async def DetachContainer(
        self, request: pb.DetachContainerRequest, context: Context
    ) -> pb.DetachContainerResponse:
        await self._attachments.detach(_container_id(request.container_id))
        return pb.DetachContainerResponse()

    async def GetAttachment(
        self, request: pb.GetAttachmentRequest, context: Context
    ) -> pb.GetAttachmentResponse:
        attachment = await self._attachments.get(request.container_id)
        return pb.GetAttachmentResponse(attachment=attachment_message(attachment))

    async def ListAttachments(
        self, request: pb.ListAttachmentsRequest, context: Context
    ) -> pb.ListAttachmentsResponse:
        size = page_size(request.page_size)
        after = number_of(_SCOPE, request.page_token)
        found = await self._attachments.page(after, size + 1)
        shown = found[:size]
        more = len(found) > size
        return pb.ListAttachmentsResponse(
            attachments=[attachment_message(attachment) for _, attachment in shown],
            next_page_token=token_for(_SCOPE, shown[-1][0]) if more else "",
        )


def policy_of(message: pb.Policy) -> Policy:
    """Raises InvalidField for an access that is not known."""
    access = _ACCESS.get(message.access)
    if access is None:
        raise InvalidField("policy.access", "is not known; allowed: ACCESS_DISABLED")
    return Policy(access, tuple(message.allowed_domains), tuple(message.blocked_domains))


def attachment_message(attachment: Attachment) -> pb.Attachment:
    """An attachment for the wire."""
    message = pb.Attachment(
        container_id=attachment.container_id,
        project_id=attachment.project_id,
        policy=pb.Policy(
            access=_ACCESS_MESSAGES[attachment.policy.access],
            allowed_domains=attachment.policy.allowed_domains,
            blocked_domains=attachment.policy.blocked_domains,
        ),
        revision=attachment.revision,
    )
    message.create_time.FromDatetime(attachment.create_time)
    message.update_time.FromDatetime(attachment.update_time)
    return message


def _container_id(value: str) -> str:
    if not 1 <= len(value) <= _MAX_ID:
        raise InvalidField("container_id", f"must have 1 to {_MAX_ID} characters")
    return value


def _project_id(value: str) -> str:
    if len(value) > _MAX_ID:
        raise InvalidField("project_id", f"must have at most {_MAX_ID} characters")
    return value or "default"


def _expected_revision(request: pb.AttachContainerRequest) -> int | None:
    if not request.HasField("expected_revision"):
        return None
    if request.expected_revision < 0:
        raise InvalidField("expected_revision", "must not be negative")
    return request.expected_revision
