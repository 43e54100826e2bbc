"""Owns what the runtime remembers of containers and executions, as plain frozen values.

Knows no transport, no engine and no storage.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum

from container_runtime.model import Outcome, StartSpec

DEFAULT_PROJECT = "default"
DEFAULT_IMAGE = "base"
DEFAULT_IDLE_TIMEOUT = timedelta(minutes=20)
DEFAULT_RETENTION = timedelta(days=7)
DEFAULT_SPOOL_BYTES = 64 * 2**20


class Size(StrEnum):
    """How large a container is."""

    SMALL = "small"
    MEDIUM = "medium"
    LARGE = "large"


class ContainerState(StrEnum):
    """Where a container is in its life."""

    CREATING = "creating"
    ACTIVE = "active"
    SUSPENDING = "suspending"
    SUSPENDED = "suspended"
    RESUMING = "resuming"
    DELETING = "deleting"
    FAILED = "failed"


ALLOWED: Mapping[ContainerState, frozenset[ContainerState]] = {
    ContainerState.CREATING: frozenset({ContainerState.ACTIVE, ContainerState.DELETING}),
    ContainerState.ACTIVE: frozenset(
        {ContainerState.SUSPENDING, ContainerState.FAILED, ContainerState.DELETING}
    ),
    ContainerState.SUSPENDING: frozenset(
        {ContainerState.SUSPENDED, ContainerState.FAILED, ContainerState.DELETING}
    ),
    ContainerState.SUSPENDED: frozenset({ContainerState.RESUMING, ContainerState.DELETING}),
    ContainerState.RESUMING: frozenset(
        {
            ContainerState.ACTIVE,
            ContainerState.SUSPENDING,
            ContainerState.FAILED,
            ContainerState.DELETING,
        }
    ),
    # What died because the engine went away with it is kept as if it had been suspended.
    ContainerState.FAILED: frozenset({ContainerState.SUSPENDING, ContainerState.DELETING}),
    ContainerState.DELETING: frozenset(),
}
"""Which state may follow which."""

LIVE = frozenset(
    {
        ContainerState.CREATING,
        ContainerState.ACTIVE,
        ContainerState.SUSPENDING,
        ContainerState.RESUMING,
    }
)
"""States in which a container's processes take memory."""


@dataclass(frozen=True, slots=True)
class ContainerRequest:
    """What a caller asks for. Two requests with one `request_id` must be equal."""

    request_id: str = ""
    project_id: str = DEFAULT_PROJECT
    image: str = DEFAULT_IMAGE
    size: Size = Size.MEDIUM
    labels: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[bytes, bytes] = field(default_factory=dict)
    idle_timeout: timedelta = DEFAULT_IDLE_TIMEOUT
    retention: timedelta = DEFAULT_RETENTION
    """How long it is kept suspended before it is deleted."""
    max_life: timedelta | None = None
    """How long after its creation it is deleted, whatever happens in it; `None`: never."""


@dataclass(frozen=True, slots=True)
class MainProcess:
    """A container's main process on this host. `start_ticks` tells a reused number."""

    pid: int
    start_ticks: int


@dataclass(frozen=True, slots=True)
class ContainerRecord:
    """A container as it is remembered."""

    id: str
    node_id: str
    request: ContainerRequest
    state: ContainerState
    created: datetime
    last_active: datetime
    engine_id: str = ""
    """The engine's name for it; empty until the engine has made it."""
    image_environment: Mapping[bytes, bytes] = field(default_factory=dict)
    """What the image gives every command."""
    image_reference: str = ""
    """Exactly the image that it was made from."""
    failure: str = ""
    suspended: datetime | None = None
    """Since when it is suspended."""
    main_process: MainProcess | None = None
    """As it was met by this process of the runtime; not remembered beyond it."""

    @property
    def expires(self) -> datetime:
        """When it expires if nothing happens in it until then."""
        return self.last_active + self.request.idle_timeout

    @property
    def deletes(self) -> datetime | None:
        """When it will be deleted, as things stand; `None` while nothing says so."""
        ends = []
        if self.request.max_life is not None:
            ends.append(self.created + self.request.max_life)
        if self.suspended is not None:
            ends.append(self.suspended + self.request.retention)
        if self.state is ContainerState.FAILED:
            ends.append(self.expires)
        return min(ends, default=None)

    @property
    def environment(self) -> dict[bytes, bytes]:
        """What every command in it starts from."""
        return {**self.image_environment, **self.request.environment}


class SpoolPolicy(StrEnum):
    """What happens when a stream has filled its spool."""

    KEEP_ENDS = "keep_ends"
    BLOCK = "block"


@dataclass(frozen=True, slots=True)
class SpoolSpec:
    """How much of each output stream is kept on the node."""

    bytes_per_stream: int = DEFAULT_SPOOL_BYTES
    policy: SpoolPolicy = SpoolPolicy.KEEP_ENDS


@dataclass(frozen=True, slots=True)
class ExecutionRequest:
    """A command, where it runs and how its output is kept. Equal requests are the same command."""

    container_id: str
    spec: StartSpec
    """Its `env` is only what the caller gave; its `exec_id` names the execution."""
    spool: SpoolSpec = SpoolSpec()

    @property
    def id(self) -> str:
        """The execution's id."""
        return self.spec.exec_id


@dataclass(frozen=True, slots=True)
class Totals:
    """How much of a stream there is: bytes written, and the range in it that is not kept."""

    total: int = 0
    gap_offset: int = 0
    gap_bytes: int = 0


@dataclass(frozen=True, slots=True)
class ExecutionRecord:
    """An execution as it is remembered; `outcome` is set once it is over."""

    request: ExecutionRequest
    created: datetime
    started: datetime | None = None
    ended: datetime | None = None
    outcome: Outcome | None = None
    stdout: Totals = Totals()
    stderr: Totals = Totals()
    stdin_bytes: int = 0

    @property
    def id(self) -> str:
        """The execution's id."""
        return self.request.id
