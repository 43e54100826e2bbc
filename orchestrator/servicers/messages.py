"""Owns how records are written as messages."""

from datetime import datetime
from typing import assert_never

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from orchestrator import records as r
from workroom.orchestrator.v1 import (
    agents_pb2,
    environments_pb2,
    events_pb2,
    files_pb2,
    keys_pb2,
    sessions_pb2,
    turns_pb2,
)


def timestamp(time: datetime | None) -> Timestamp | None:
    if time is None:
        return None
    message = Timestamp()
    message.FromDatetime(time)
    return message


def session(value: r.Session) -> sessions_pb2.Session:
    return sessions_pb2.Session(
        id=value.id,
        project_id=value.project_id,
        state=_SESSION_STATES[value.state],
        agent=agent(value.agent),
        environment=environment(value.environment),
        review=_REVIEWS[value.review],
        metadata=value.metadata,
        usage=usage(value.usage),
        error=value.error,
        last_sequence_number=value.last_sequence_number,
        create_time=timestamp(value.create_time),
        last_active_time=timestamp(value.last_active_time),
        agent_id=value.agent_id,
    )


def saved_agent(value: r.SavedAgent) -> agents_pb2.SavedAgent:
    return agents_pb2.SavedAgent(
        id=value.id,
        project_id=value.project_id,
        name=value.name,
        agent=agent(value.agent),
        metadata=value.metadata,
        create_time=timestamp(value.create_time),
        update_time=timestamp(value.update_time),
    )


def agent(value: r.Agent) -> agents_pb2.Agent:
    """What is input only, keys and scripts, is left out."""
    message = agents_pb2.Agent(
        model=value.model,
        instructions=value.instructions,
        reasoning=agents_pb2.Reasoning(
            effort=_EFFORTS[value.reasoning.effort], summary=value.reasoning.summary
        ),
    )
    match value.provider:
        case r.Script(name=name):
            message.provider.script.name = name
        case r.ModelEndpoint(base_url=base_url, protocol=protocol):
            message.provider.endpoint.base_url = base_url
            message.provider.endpoint.protocol = _PROTOCOLS[protocol]
    return message


def environment(value: r.Environment) -> environments_pb2.Environment:
    return environments_pb2.Environment(
        id=value.id,
        state=_ENVIRONMENT_STATES[value.state],
        image=value.image,
        size=_SIZES[value.size],
        files=[
            environments_pb2.EnvironmentFile(
                path=file.path,
                size_bytes=file.size_bytes,
                file_id=file.file_id,
                description=file.description,
            )
            for file in value.files
        ],
        network=environments_pb2.NetworkPolicy(
            access=_ACCESS[value.network.access],
            allowed_domains=value.network.allowed_domains,
            blocked_domains=value.network.blocked_domains,
        ),
        permissions=environments_pb2.EnvironmentPermissions(
            root=value.permissions.root, dangerous=value.permissions.dangerous
        ),
        error=value.error,
    )


def usage(value: r.Usage) -> turns_pb2.Usage:
    return turns_pb2.Usage(
        agent=_tokens(value.agent),
        reviewer=_tokens(value.reviewer),
        compaction=_tokens(value.compaction),
        model_calls=value.model_calls,
        incomplete=value.incomplete,
    )


def turn(value: r.Turn) -> turns_pb2.Turn:
    error = value.error
    return turns_pb2.Turn(
        id=value.id,
        session_id=value.session_id,
        state=_TURN_STATES[value.state],
        error=turns_pb2.TurnError(code=error.code, message=error.message) if error else None,
        usage=usage(value.usage),
        create_time=timestamp(value.create_time),
        start_time=timestamp(value.start_time),
        end_time=timestamp(value.end_time),
    )


def item(value: r.Item) -> turns_pb2.Item:
    message = turns_pb2.Item(
        id=value.id,
        session_id=value.session_id,
        turn_id=value.turn_id,
        state=_ITEM_STATES[value.state],
        create_time=timestamp(value.create_time),
    )
    match value.content:
        case r.UserMessage(content=parts):
            message.message.role = turns_pb2.Message.ROLE_USER
            message.message.content.extend(_part(part) for part in parts)
        case r.AssistantMessage(text=text, phase=phase):
            message.message.role = turns_pb2.Message.ROLE_ASSISTANT
            message.message.phase = _PHASES[phase]
            message.message.content.add(text=text)
        case r.ReasoningSummary(summary=summary):
            message.reasoning.summary.extend(summary)
            message.reasoning.SetInParent()
        case r.FunctionCall() as call:
            message.function_call.call_id = call.call_id
            message.function_call.name = call.name
            message.function_call.arguments = call.arguments
            message.function_call.output = call.output
        case r.CommandExecution() as command:
            message.command_execution.CopyFrom(_command(command))
        case other:
            assert_never(other)
    return message


def event(value: r.Event) -> events_pb2.Event:
    message = events_pb2.Event(
        sequence_number=value.sequence_number,
        after_sequence_number=value.after_sequence_number,
        session_id=value.session_id,
        turn_id=value.turn_id,
        create_time=timestamp(value.create_time),
    )
    payload = getattr(message, value.kind.value)
    payload.SetInParent()
    match value.payload:
        case r.SessionError(error=error):
            payload.error = error
        case r.Turn() as changed:
            payload.turn.CopyFrom(turn(changed))
        case r.Item() as changed:
            payload.item.CopyFrom(item(changed))
        case r.Environment() as changed:
            payload.environment.CopyFrom(environment(changed))
        case r.Artifact() as published:
            payload.artifact.CopyFrom(artifact(published))
        case r.TextDelta(item_id=item_id, delta=delta):
            payload.item_id, payload.delta = item_id, delta
        case r.TextRestarted(item_id=item_id):
            payload.item_id = item_id
        case r.CommandOutputDelta() as output:
            payload.item_id, payload.delta = output.item_id, output.delta
            payload.is_stderr, payload.after_gap = output.is_stderr, output.after_gap
        case other:
            assert_never(other)
    return message


def artifact(value: r.Artifact) -> events_pb2.Artifact:
    return events_pb2.Artifact(
        id=value.id,
        session_id=value.session_id,
        turn_id=value.turn_id,
        environment_id=value.environment_id,
        path=value.path,
        size_bytes=value.size_bytes,
        sha256=value.sha256,
        create_time=timestamp(value.create_time),
    )


def file(value: r.StoredFile) -> files_pb2.File:
    return files_pb2.File(
        id=value.id,
        project_id=value.project_id,
        filename=value.filename,
        size_bytes=value.size_bytes,
        sha256=value.sha256,
        create_time=timestamp(value.create_time),
    )


def key(value: r.ApiKey) -> keys_pb2.Key:
    return keys_pb2.Key(
        id=value.id,
        project_id=value.project_id,
        name=value.name,
        create_time=timestamp(value.create_time),
    )


def _command(value: r.CommandExecution) -> turns_pb2.CommandExecution:
    message = turns_pb2.CommandExecution(
        call_id=value.call_id,
        command=value.command,
        cwd=value.cwd,
        as_root=value.as_root,
        execution_id=value.execution_id,
        decision_id=value.decision_id,
        stdout=value.stdout,
        stderr=value.stderr,
    )
    if value.duration is not None:
        duration = Duration()
        duration.FromTimedelta(value.duration)
        message.duration.CopyFrom(duration)
    match value.outcome:
        case r.Exited(code=code):
            message.exit_code = code
        case r.Signalled(signal=signal):
            message.signal = signal
        case r.Ended(words=words):
            message.ended = words
        case None if value.still_running:
            message.ended = "still running when the model got this result"
    return message


def _part(value: r.ContentPart) -> turns_pb2.ContentPart:
    if isinstance(value, r.Text):
        return turns_pb2.ContentPart(text=value.text)
    return turns_pb2.ContentPart(image_url=value.url)


def _tokens(value: r.TokenUsage) -> turns_pb2.TokenUsage:
    return turns_pb2.TokenUsage(
        input_tokens=value.input_tokens,
        cached_input_tokens=value.cached_input_tokens,
        output_tokens=value.output_tokens,
        reasoning_tokens=value.reasoning_tokens,
    )


_SESSION_STATES = {
    r.SessionState.IDLE: sessions_pb2.Session.STATE_IDLE,
    r.SessionState.IN_PROGRESS: sessions_pb2.Session.STATE_IN_PROGRESS,
    r.SessionState.FAILED: sessions_pb2.Session.STATE_FAILED,
}
_TURN_STATES = {
    r.TurnState.QUEUED: turns_pb2.Turn.STATE_QUEUED,
    r.TurnState.IN_PROGRESS: turns_pb2.Turn.STATE_IN_PROGRESS,
    r.TurnState.COMPLETED: turns_pb2.Turn.STATE_COMPLETED,
    r.TurnState.FAILED: turns_pb2.Turn.STATE_FAILED,
    r.TurnState.CANCELLED: turns_pb2.Turn.STATE_CANCELLED,
}
_ITEM_STATES = {
    r.ItemState.IN_PROGRESS: turns_pb2.Item.STATE_IN_PROGRESS,
    r.ItemState.COMPLETED: turns_pb2.Item.STATE_COMPLETED,
    r.ItemState.FAILED: turns_pb2.Item.STATE_FAILED,
    r.ItemState.INCOMPLETE: turns_pb2.Item.STATE_INCOMPLETE,
}
_ENVIRONMENT_STATES = {
    r.EnvironmentState.PENDING: environments_pb2.Environment.STATE_PENDING,
    r.EnvironmentState.READY: environments_pb2.Environment.STATE_READY,
    r.EnvironmentState.SUSPENDED: environments_pb2.Environment.STATE_SUSPENDED,
    r.EnvironmentState.EXPIRED: environments_pb2.Environment.STATE_EXPIRED,
    r.EnvironmentState.FAILED: environments_pb2.Environment.STATE_FAILED,
}
_SIZES = {
    r.Size.SMALL: environments_pb2.EnvironmentSpec.SIZE_SMALL,
    r.Size.MEDIUM: environments_pb2.EnvironmentSpec.SIZE_MEDIUM,
    r.Size.LARGE: environments_pb2.EnvironmentSpec.SIZE_LARGE,
}
_ACCESS = {
    r.Access.DISABLED: environments_pb2.NetworkPolicy.ACCESS_DISABLED,
    r.Access.RESTRICTED: environments_pb2.NetworkPolicy.ACCESS_RESTRICTED,
    r.Access.ENABLED: environments_pb2.NetworkPolicy.ACCESS_ENABLED,
}
_REVIEWS = {
    r.Review.NONE: sessions_pb2.REVIEW_NONE,
    r.Review.AUTO_REVIEW: sessions_pb2.REVIEW_AUTO_REVIEW,
}
_PHASES = {
    None: turns_pb2.Message.PHASE_UNSPECIFIED,
    r.Phase.COMMENTARY: turns_pb2.Message.PHASE_COMMENTARY,
    r.Phase.FINAL_ANSWER: turns_pb2.Message.PHASE_FINAL_ANSWER,
}
_EFFORTS = {
    None: agents_pb2.Reasoning.EFFORT_UNSPECIFIED,
    r.Effort.NONE: agents_pb2.Reasoning.EFFORT_NONE,
    r.Effort.MINIMAL: agents_pb2.Reasoning.EFFORT_MINIMAL,
    r.Effort.LOW: agents_pb2.Reasoning.EFFORT_LOW,
    r.Effort.MEDIUM: agents_pb2.Reasoning.EFFORT_MEDIUM,
    r.Effort.HIGH: agents_pb2.Reasoning.EFFORT_HIGH,
}
_PROTOCOLS = {
    r.EndpointProtocol.RESPONSES: agents_pb2.ModelEndpoint.PROTOCOL_RESPONSES,
    r.EndpointProtocol.CHAT: agents_pb2.ModelEndpoint.PROTOCOL_CHAT,
}
