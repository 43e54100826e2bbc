"""Owns what the loop asks of the rest of the orchestrator; what answers is chosen at start."""

from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Sequence,
    Set,
)
from datetime import timedelta
from typing import Protocol

from orchestrator.models.model import Model, ModelRequest
from orchestrator.records import (
    Agent,
    CommandExecution,
    Environment,
    EnvironmentFile,
    Item,
    NetworkPolicy,
    Session,
)
from orchestrator.tools.followers import OnDelta, PlannedCommand
from orchestrator.tools.results import CommandResult

OpenFile = Callable[[EnvironmentFile], AsyncIterator[bytes]]


class OutputFile(Protocol):
    """A file in /workspace/outputs."""

    @property
    def path(self) -> str: ...
    @property
    def raw(self) -> bytes:
        """The path as it is in the container."""
        ...


class Environments(Protocol):
    """Containers and their files."""

    async def prepare(
        self, environment: Environment, *, session_id: str, open_file: OpenFile
    ) -> str:
        """Make the environment's container, or find the one made before; returns its id."""
        ...

    async def check_network(self, network: NetworkPolicy) -> None:
        """Raise `InvalidField` for a policy that the egress proxy would not keep."""
        ...

    async def rejoin(self, environment: Environment, *, session_id: str) -> None:
        """Make sure that a container made earlier runs, under its network policy."""
        ...

    async def data_map(self, container_id: str, files: Sequence[EnvironmentFile]) -> str:
        """What the model is told about the files."""
        ...

    async def outputs(self, container_id: str) -> Sequence[OutputFile]:
        """The files that the agent left for its user."""
        ...

    def read_file(self, container_id: str, path: str | bytes) -> AsyncIterator[bytes]: ...

    async def dispose(self, container_id: str) -> None:
        """Delete a container; idempotent."""
        ...

    async def sweep(self, live: Callable[[], Awaitable[Set[str]]]) -> int:
        """Delete containers whose environments are not among the live ones; says how many."""
        ...


class Commands(Protocol):
    """Running commands in containers."""

    def run(
        self,
        container_id: str,
        commands: Sequence[PlannedCommand],
        *,
        yield_time: timedelta | None = None,
        on_delta: OnDelta = ...,
    ) -> AsyncGenerator[CommandResult, None]:
        """Results as commands end; one that was begun before is followed, never run again."""
        ...

    async def cancel(self, execution_ids: Iterable[str]) -> None:
        """End commands; answers when they have ended. Idempotent."""
        ...


class Decision(Protocol):
    """What the reviewer says of a command."""

    @property
    def id(self) -> str: ...
    @property
    def allowed(self) -> bool: ...
    @property
    def reason(self) -> str: ...


class Reviews(Protocol):
    """Judging commands before they run."""

    async def review(self, session: Session, item: Item, command: CommandExecution) -> Decision:
        """Decide; the same item gets the same decision again."""
        ...


class Models(Protocol):
    """Choosing who answers."""

    def choose(self, agent: Agent) -> tuple[Model, str]:
        """The model and the name to ask it for."""
        ...


Assemble = Callable[[Session, Agent, str, Sequence[Item]], ModelRequest]
"""Makes the request out of the session, its agent, the map of its data and all items."""
