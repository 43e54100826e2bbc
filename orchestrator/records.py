"""Owns the values that the orchestrator keeps: sessions, turns, items, events and their parts.

Knows no wire format, no storage and no other service.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Literal


class SessionState(StrEnum):
    IDLE = "idle"
    IN_PROGRESS = "in_progress"
    FAILED = "failed"


class TurnState(StrEnum):
    QUEUED = "queued"
    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_final(self) -> bool:
        return self not in (TurnState.QUEUED, TurnState.IN_PROGRESS)


class ItemState(StrEnum):
    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"
    FAILED = "failed"
    INCOMPLETE = "incomplete"


class EnvironmentState(StrEnum):
    PENDING = "pending"
    READY = "ready"
    SUSPENDED = "suspended"
    EXPIRED = "expired"
    FAILED = "failed"


class Size(StrEnum):
    SMALL = "small"
    MEDIUM = "medium"
    LARGE = "large"


class Access(StrEnum):
    DISABLED = "disabled"
    RESTRICTED = "restricted"
    ENABLED = "enabled"


class Review(StrEnum):
    NONE = "none"
    AUTO_REVIEW = "auto_review"


class Phase(StrEnum):
    """What a message of the agent is for: said next to tool calls, or the end of the turn."""

    COMMENTARY = "commentary"
    FINAL_ANSWER = "final_answer"


class Effort(StrEnum):
    NONE = "none"
    MINIMAL = "minimal"
    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"


class EndpointProtocol(StrEnum):
    RESPONSES = "responses"
    CHAT = "chat"


@dataclass(frozen=True, slots=True)
class Reasoning:
    """How a model reasons. `effort` None is the model's own default."""

    effort: Effort | None = None
    summary: bool = False


@dataclass(frozen=True, slots=True)
class ModelEndpoint:
    """A model server that a session names. `sealed_key` is its key, encrypted; empty for none."""

    base_url: str
    protocol: EndpointProtocol = EndpointProtocol.RESPONSES
    sealed_key: str = ""
    kind: Literal["endpoint"] = "endpoint"


@dataclass(frozen=True, slots=True)
class Script:
    """A script that is played instead of a model."""

    name: str
    yaml: str
    kind: Literal["script"] = "script"


@dataclass(frozen=True, slots=True)
class Agent:
    """A model with instructions. An empty `model` and no provider mean the configured ones."""

    model: str = ""
    instructions: str = ""
    reasoning: Reasoning = field(default_factory=Reasoning)
    provider: ModelEndpoint | Script | None = None


@dataclass(frozen=True, slots=True)
class SavedAgent:
    """An agent that is kept for many sessions; what is empty in it is settled by each of them."""

    id: str
    project_id: str
    name: str
    agent: Agent
    metadata: Mapping[str, str]
    create_time: datetime
    update_time: datetime


@dataclass(frozen=True, slots=True)
class NetworkPolicy:
    access: Access = Access.DISABLED
    allowed_domains: tuple[str, ...] = ()
    blocked_domains: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Permissions:
    """What commands may do without being reviewed."""

    root: bool = False
    dangerous: bool = False


@dataclass(frozen=True, slots=True)
class EnvironmentFile:
    """A file put into an environment; `blob` names its content in the blob store."""

    path: str
    size_bytes: int
    blob: str
    file_id: str = ""
    description: str = ""


@dataclass(frozen=True, slots=True)
class Environment:
    """Where a session's commands run.

    `container_id` is empty until its container was made. `env` is never shown.
    """

    id: str
    session_id: str
    project_id: str
    state: EnvironmentState = EnvironmentState.PENDING
    image: str = "base"
    size: Size = Size.MEDIUM
    files: tuple[EnvironmentFile, ...] = ()
    network: NetworkPolicy = field(default_factory=NetworkPolicy)
    env: Mapping[str, str] = field(default_factory=dict)
    permissions: Permissions = field(default_factory=Permissions)
    container_id: str = ""
    error: str = ""
    data_map: str | None = None


@dataclass(frozen=True, slots=True)
class TokenUsage:
    """Tokens; `cached_input_tokens` and `reasoning_tokens` are shares of the other two."""

    input_tokens: int = 0
    cached_input_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0

    def __add__(self, other: "TokenUsage") -> "TokenUsage":
        return TokenUsage(
            self.input_tokens + other.input_tokens,
            self.cached_input_tokens + other.cached_input_tokens,
            self.output_tokens + other.output_tokens,
            self.reasoning_tokens + other.reasoning_tokens,
        )


@dataclass(frozen=True, slots=True)
class Usage:
    """What models have used, by whom. `incomplete`: some call came without a count."""

    agent: TokenUsage = field(default_factory=TokenUsage)
    reviewer: TokenUsage = field(default_factory=TokenUsage)
    compaction: TokenUsage = field(default_factory=TokenUsage)
    model_calls: int = 0
    incomplete: bool = False

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            self.agent + other.agent,
            self.reviewer + other.reviewer,
            self.compaction + other.compaction,
            self.model_calls + other.model_calls,
            self.incomplete or other.incomplete,
        )


@dataclass(frozen=True, slots=True)
class Session:
    id: str
    project_id: str
    state: SessionState
    agent: Agent
    environment: Environment
    review: Review
    metadata: Mapping[str, str]
    create_time: datetime
    last_active_time: datetime
    usage: Usage = field(default_factory=Usage)
    error: str = ""
    last_sequence_number: int = 0
    agent_id: str = ""


@dataclass(frozen=True, slots=True)
class TurnError:
    """Why a turn failed; the codes are those that the contract lists."""

    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Turn:
    id: str
    session_id: str
    state: TurnState
    create_time: datetime
    start_time: datetime | None = None
    end_time: datetime | None = None
    error: TurnError | None = None
    usage: Usage = field(default_factory=Usage)


class Stage(StrEnum):
    """How far a turn has come, as it is recorded before the next stage begins."""

    QUEUED = "queued"
    PREPARING = "preparing"
    """The environment is not known to be ready."""
    THINKING = "thinking"
    """The model is to be asked; whether it was asked already is not known."""
    ACTING = "acting"
    """The model's calls are recorded; those whose items are open have no result yet."""
    PUBLISHING = "publishing"
    """The model has given its answer; what the turn left behind is to be published."""
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class TurnProgress:
    """A turn with what is needed to go on with it. `step` counts the answers recorded.

    `lease` is the number under which it is worked on; 0 for one that nobody works on here.
    """

    turn: Turn
    project_id: str
    stage: Stage = Stage.QUEUED
    step: int = 0
    cancel_requested: bool = False
    lease: int = 0


@dataclass(frozen=True, slots=True)
class Text:
    text: str
    kind: Literal["text"] = "text"


@dataclass(frozen=True, slots=True)
class ImageUrl:
    url: str
    kind: Literal["image_url"] = "image_url"


ContentPart = Text | ImageUrl


@dataclass(frozen=True, slots=True)
class UserMessage:
    content: tuple[ContentPart, ...]
    kind: Literal["user_message"] = "user_message"


@dataclass(frozen=True, slots=True)
class AssistantMessage:
    text: str
    phase: Phase | None = None
    kind: Literal["assistant_message"] = "assistant_message"


@dataclass(frozen=True, slots=True)
class ReasoningSummary:
    """A model's reasoning. Only `summary` is shown; the rest goes back to the same model."""

    summary: tuple[str, ...] = ()
    model_item_id: str = ""
    encrypted_content: str | None = None
    content: tuple[str, ...] = ()
    kind: Literal["reasoning"] = "reasoning"


@dataclass(frozen=True, slots=True)
class Exited:
    code: int
    kind: Literal["exited"] = "exited"


@dataclass(frozen=True, slots=True)
class Signalled:
    signal: int
    kind: Literal["signalled"] = "signalled"


@dataclass(frozen=True, slots=True)
class Ended:
    """Neither a code nor a signal: timed out, refused, cancelled, still running… in words."""

    words: str
    kind: Literal["ended"] = "ended"


Outcome = Exited | Signalled | Ended


@dataclass(frozen=True, slots=True)
class CommandExecution:
    """A command of a shell call; those with one `call_id` were asked for together.

    `arguments` is the whole call as the model wrote it, on the first command of the call and
    empty on the others. `timeout` and `max_output_chars` are the settled ones. `yield_time` None
    means that the call waits for the end. `outcome` is None until there is one; `still_running`
    says that the model got its result before the end. `stdout` and `stderr` are bounded already;
    `output_held` says that a process which the command left behind may write more, unseen.
    """

    call_id: str
    command: str
    timeout: timedelta
    max_output_chars: int
    cwd: str = ""
    as_root: bool = False
    justification: str = ""
    yield_time: timedelta | None = None
    arguments: str = ""
    execution_id: str = ""
    decision_id: str = ""
    outcome: Outcome | None = None
    still_running: bool = False
    stdout: str = ""
    stderr: str = ""
    duration: timedelta | None = None
    output_held: bool = False
    kind: Literal["command_execution"] = "command_execution"


@dataclass(frozen=True, slots=True)
class FunctionCall:
    """A call that is not a command; `output` is what the model is told."""

    call_id: str
    name: str
    arguments: str
    output: str = ""
    kind: Literal["function_call"] = "function_call"


ItemContent = UserMessage | AssistantMessage | ReasoningSummary | CommandExecution | FunctionCall


POSITIONS_PER_ANSWER = 100_000
"""How far apart the positions of two answers' first items are."""


@dataclass(frozen=True, slots=True)
class Item:
    """One thing in a conversation.

    `position` orders the items of a turn as the model gave them, whenever they were recorded.
    """

    id: str
    session_id: str
    turn_id: str
    state: ItemState
    create_time: datetime
    content: ItemContent
    position: int = 0

    @property
    def answer(self) -> int:
        """Which of its turn's answers it belongs to, from 1; 0 for what the user said."""
        return self.position // POSITIONS_PER_ANSWER


@dataclass(frozen=True, slots=True)
class Artifact:
    """A file that a turn left in /workspace/outputs; `blob` names its content."""

    id: str
    session_id: str
    turn_id: str
    environment_id: str
    path: str
    size_bytes: int
    sha256: str
    create_time: datetime
    blob: str


@dataclass(frozen=True, slots=True)
class StoredFile:
    """An uploaded file; `blob` names its content."""

    id: str
    project_id: str
    filename: str
    size_bytes: int
    sha256: str
    create_time: datetime
    blob: str


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A caller's key; only its SHA-256 is kept."""

    id: str
    project_id: str
    name: str
    create_time: datetime


class EventKind(StrEnum):
    SESSION_CREATED = "session_created"
    SESSION_IN_PROGRESS = "session_in_progress"
    SESSION_IDLE = "session_idle"
    SESSION_FAILED = "session_failed"
    TURN_CREATED = "turn_created"
    TURN_IN_PROGRESS = "turn_in_progress"
    TURN_COMPLETED = "turn_completed"
    TURN_FAILED = "turn_failed"
    TURN_CANCELLED = "turn_cancelled"
    ITEM_ADDED = "item_added"
    ITEM_DONE = "item_done"
    ENVIRONMENT_PENDING = "environment_pending"
    ENVIRONMENT_READY = "environment_ready"
    ENVIRONMENT_SUSPENDED = "environment_suspended"
    ENVIRONMENT_FAILED = "environment_failed"
    ENVIRONMENT_EXPIRED = "environment_expired"
    ARTIFACT_PUBLISHED = "artifact_published"
    OUTPUT_TEXT_DELTA = "output_text_delta"
    REASONING_SUMMARY_DELTA = "reasoning_summary_delta"
    COMMAND_OUTPUT_DELTA = "command_output_delta"
    OUTPUT_TEXT_RESTARTED = "output_text_restarted"


@dataclass(frozen=True, slots=True)
class SessionError:
    """Why a session failed; empty for the other changes of a session."""

    error: str = ""


@dataclass(frozen=True, slots=True)
class TextDelta:
    item_id: str
    delta: str


@dataclass(frozen=True, slots=True)
class TextRestarted:
    item_id: str


@dataclass(frozen=True, slots=True)
class CommandOutputDelta:
    item_id: str
    is_stderr: bool
    delta: str
    after_gap: bool = False


Payload = (
    SessionError
    | Turn
    | Item
    | Environment
    | Artifact
    | TextDelta
    | TextRestarted
    | CommandOutputDelta
)


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened in a session.

    Durable events count `sequence_number` from 1; a live one has 0 and names in
    `after_sequence_number` the durable event before it.
    """

    session_id: str
    kind: EventKind
    payload: Payload
    create_time: datetime
    turn_id: str = ""
    sequence_number: int = 0
    after_sequence_number: int = 0

    @property
    def is_durable(self) -> bool:
        return self.sequence_number > 0
