"""Owns how requests are read as values of the domain; what is allowed is decided there."""

import hashlib
from collections.abc import Iterable, Mapping
from typing import TypeVar

from google.protobuf.message import Message

from orchestrator import records as r
from orchestrator.agents import AgentSpec
from orchestrator.sessions.sessions import SessionChange
from orchestrator.sessions.specs import (
    DEFAULT_PROJECT,
    EnvironmentSpec,
    FileSpec,
    SessionSpec,
    check_request_id,
)
from orchestrator.store.requests import RequestId
from workroom.errors import InvalidField
from workroom.orchestrator.v1 import agents_pb2, environments_pb2, sessions_pb2, turns_pb2

T = TypeVar("T")


def project(project_id: str) -> str:
    return project_id or DEFAULT_PROJECT


def request_id(value: str, project_id: str, scope: str, asked: Message) -> RequestId | None:
    """The caller's id with a digest of all it asks for; None where it gave none.

    Errors: `InvalidField`.
    """
    if not value:
        return None
    check_request_id(value)
    digest = hashlib.sha256(asked.SerializeToString(deterministic=True)).hexdigest()
    return RequestId(project(project_id), scope, value, digest)


def session_spec(message: sessions_pb2.CreateSessionRequest) -> SessionSpec:
    """Errors: `InvalidField` for an enum's value that does not exist, or an unset choice."""
    return SessionSpec(
        project_id=project(message.project_id),
        agent=_agent(message.agent),
        environment=_environment(message.environment),
        review=_choice(_REVIEWS, message.review, "review"),
        input=content(message.input),
        metadata=dict(message.metadata),
        endpoint_key=message.agent.provider.endpoint.api_key,
        agent_id=message.agent_id,
    )


def agent_spec(
    message: agents_pb2.CreateAgentRequest | agents_pb2.UpdateAgentRequest,
) -> AgentSpec:
    """Errors: `InvalidField` for an enum's value that does not exist."""
    return AgentSpec(
        name=message.name,
        agent=_agent(message.agent),
        endpoint_key=message.agent.provider.endpoint.api_key,
        metadata=dict(message.metadata),
    )


def session_change(message: sessions_pb2.UpdateSessionRequest) -> SessionChange:
    """Errors: `InvalidField` for an enum's value that does not exist."""
    review = _choice(_REVIEWS, message.review, "review")
    return SessionChange(
        paths=frozenset(message.update_mask.paths),
        agent=_agent(message.agent),
        review=review if message.review else None,
        metadata=dict(message.metadata),
    )


def content(parts: Iterable[turns_pb2.ContentPart]) -> tuple[r.ContentPart, ...]:
    return tuple(_part(part, number) for number, part in enumerate(parts))


def _part(part: turns_pb2.ContentPart, number: int) -> r.ContentPart:
    match part.WhichOneof("kind"):
        case "text":
            return r.Text(part.text)
        case "image_url":
            return r.ImageUrl(part.image_url)
    raise InvalidField(f"input[{number}]", "needs `text` or `image_url`")


def _agent(message: agents_pb2.Agent) -> r.Agent:
    return r.Agent(
        model=message.model,
        instructions=message.instructions,
        reasoning=r.Reasoning(
            effort=_choice(_EFFORTS, message.reasoning.effort, "agent.reasoning.effort"),
            summary=message.reasoning.summary,
        ),
        provider=_provider(message.provider),
    )


def _provider(message: agents_pb2.ModelProvider) -> r.ModelEndpoint | r.Script | None:
    match message.WhichOneof("kind"):
        case "endpoint":
            protocol = _choice(
                _PROTOCOLS, message.endpoint.protocol, "agent.provider.endpoint.protocol"
            )
            return r.ModelEndpoint(base_url=message.endpoint.base_url, protocol=protocol)
        case "script":
            return r.Script(message.script.name, message.script.yaml)
    return None


def _environment(message: environments_pb2.EnvironmentSpec) -> EnvironmentSpec:
    return EnvironmentSpec(
        image=message.image,
        size=_choice(_SIZES, message.size, "environment.size"),
        files=tuple(_file(file) for file in message.files),
        network=r.NetworkPolicy(
            access=_choice(_ACCESS, message.network.access, "environment.network.access"),
            allowed_domains=tuple(message.network.allowed_domains),
            blocked_domains=tuple(message.network.blocked_domains),
        ),
        env=dict(message.env),
        permissions=r.Permissions(
            root=message.permissions.root, dangerous=message.permissions.dangerous
        ),
    )


def _file(message: environments_pb2.EnvironmentFileSpec) -> FileSpec:
    is_inline = message.WhichOneof("source") == "inline"
    source = message.inline if is_inline else message.file_id
    return FileSpec(message.path, source, message.description)


def _choice(values: Mapping[int, T], number: int, field: str) -> T:
    if number not in values:
        raise InvalidField(field, f"{number} is not one of its values")
    return values[number]


_REVIEWS: dict[int, r.Review] = {
    sessions_pb2.REVIEW_UNSPECIFIED: r.Review.NONE,
    sessions_pb2.REVIEW_NONE: r.Review.NONE,
    sessions_pb2.REVIEW_AUTO_REVIEW: r.Review.AUTO_REVIEW,
}
_EFFORTS: dict[int, r.Effort | None] = {
    agents_pb2.Reasoning.EFFORT_UNSPECIFIED: None,
    agents_pb2.Reasoning.EFFORT_NONE: r.Effort.NONE,
    agents_pb2.Reasoning.EFFORT_MINIMAL: r.Effort.MINIMAL,
    agents_pb2.Reasoning.EFFORT_LOW: r.Effort.LOW,
    agents_pb2.Reasoning.EFFORT_MEDIUM: r.Effort.MEDIUM,
    agents_pb2.Reasoning.EFFORT_HIGH: r.Effort.HIGH,
}
_PROTOCOLS: dict[int, r.EndpointProtocol] = {
    agents_pb2.ModelEndpoint.PROTOCOL_UNSPECIFIED: r.EndpointProtocol.RESPONSES,
    agents_pb2.ModelEndpoint.PROTOCOL_RESPONSES: r.EndpointProtocol.RESPONSES,
    agents_pb2.ModelEndpoint.PROTOCOL_CHAT: r.EndpointProtocol.CHAT,
}
_SIZES: dict[int, r.Size] = {
    environments_pb2.EnvironmentSpec.SIZE_UNSPECIFIED: r.Size.MEDIUM,
    environments_pb2.EnvironmentSpec.SIZE_SMALL: r.Size.SMALL,
    environments_pb2.EnvironmentSpec.SIZE_MEDIUM: r.Size.MEDIUM,
    environments_pb2.EnvironmentSpec.SIZE_LARGE: r.Size.LARGE,
}
_ACCESS: dict[int, r.Access] = {
    environments_pb2.NetworkPolicy.ACCESS_UNSPECIFIED: r.Access.DISABLED,
    environments_pb2.NetworkPolicy.ACCESS_DISABLED: r.Access.DISABLED,
    environments_pb2.NetworkPolicy.ACCESS_RESTRICTED: r.Access.RESTRICTED,
    environments_pb2.NetworkPolicy.ACCESS_ENABLED: r.Access.ENABLED,
}
