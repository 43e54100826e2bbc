"""Owns what callers do with saved agents, and how an agent is checked and laid over another."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, fields, replace
from datetime import datetime

from orchestrator import ids
from orchestrator.errors import EndpointNotAllowed
from orchestrator.providers import Providers
from orchestrator.records import Agent, ModelEndpoint, SavedAgent
from orchestrator.secrets import Vault
from orchestrator.sessions.specs import NAME_CHARS, check_agent, check_metadata, check_project
from orchestrator.store.agents import AgentStore
from orchestrator.store.requests import RequestId
from workroom.errors import InvalidField

_FIELDS = frozenset(field.name for field in fields(Agent))


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks, as far as it matters here."""

    may_name_endpoints: bool


@dataclass(frozen=True, slots=True)
class AgentSpec:
    """The agent that is asked for. `endpoint_key` is the model server's key, as it came."""

    name: str
    agent: Agent
    endpoint_key: str
    metadata: Mapping[str, str]


class Agents:
    """Saved agents, and the settling of every agent that a caller names."""

    def __init__(
        self,
        store: AgentStore,
        providers: Providers,
        vault: Vault,
        clock: Callable[[], datetime],
    ) -> None:
        self._store = store
        self._providers = providers
        self._vault = vault
        self._clock = clock

    async def create(
        self, project_id: str, spec: AgentSpec, request: RequestId | None, caller: Caller
    ) -> SavedAgent:
        """Keep an agent.

        Errors: `InvalidField`, `EndpointNotAllowed`, `ModelNotConfigured`, `RequestIdReused`.
        """
        check_project(project_id)
        _check(spec)
        agent = self.sealed(spec.agent, spec.endpoint_key, caller)
        self.settled(agent)
        now = self._clock()
        saved = SavedAgent(
            ids.new("agt"), project_id, spec.name, agent, dict(spec.metadata), now, now
        )
        return await self._store.add(saved, request)

    async def update(
        self, agent_id: str, spec: AgentSpec, paths: Collection[str], caller: Caller
    ) -> SavedAgent:
        """Change the fields that `paths` names.

        Errors: `InvalidField`, `AgentNotFound`, `EndpointNotAllowed`, `ModelNotConfigured`.
        """
        check_paths(paths, {"name", "metadata", *(f"agent.{name}" for name in _FIELDS)})
        _check(spec)
        given = spec.agent
        if "agent.provider" in paths:
            given = self.sealed(given, spec.endpoint_key, caller)
        changes = {name: getattr(given, name) for name in _FIELDS if f"agent.{name}" in paths}

        def change(saved: SavedAgent) -> SavedAgent:
            agent = replace(saved.agent, **changes)
            check_agent(agent)
            self.settled(agent)
            return replace(
                saved,
                name=spec.name if "name" in paths else saved.name,
                metadata=dict(spec.metadata) if "metadata" in paths else saved.metadata,
                agent=agent,
                update_time=self._clock(),
            )

        return await self._store.update(agent_id, change)

    async def resolved(
        self, agent_id: str, agent: Agent, endpoint_key: str, caller: Caller
    ) -> Agent:
        """What a new session's agent is: a saved one (empty: none) with `agent` laid over it.

        Errors: `AgentNotFound`, `InvalidField`, `EndpointNotAllowed`, `ModelNotConfigured`.
        """
        agent = self.sealed(agent, endpoint_key, caller)
        if agent_id:
            agent = laid_over((await self._store.get(agent_id)).agent, agent)
            check_agent(agent)
        return self.settled(agent)

    def sealed(self, agent: Agent, endpoint_key: str, caller: Caller) -> Agent:
        """The agent with the key of its model server encrypted. Errors: `EndpointNotAllowed`."""
        if not isinstance(agent.provider, ModelEndpoint):
            return agent
        if not caller.may_name_endpoints:
            raise EndpointNotAllowed(
                "only the owner may name a model endpoint here; "
                "ORCHESTRATOR_ALLOW_SESSION_ENDPOINTS=true allows it to every caller"
            )
        return replace(
            agent, provider=replace(agent.provider, sealed_key=self._vault.seal(endpoint_key))
        )

    def settled(self, agent: Agent) -> Agent:
        """The agent with its model's name. Errors: `InvalidField`, `ModelNotConfigured`."""
        return self._providers.check(agent)


def laid_over(base: Agent, over: Agent) -> Agent:
    """`base` with whatever is not empty in `over`."""
    empty = Agent()
    changes = {
        name: getattr(over, name) for name in _FIELDS if getattr(over, name) != getattr(empty, name)
    }
    return replace(base, **changes)


def check_paths(paths: Collection[str], known: Collection[str]) -> None:
    """Errors: `InvalidField` for a mask that is empty or names what there is not."""
    if not paths:
        raise InvalidField("update_mask", "must name what is to be changed")
    for path in paths:
        if path not in known:
            raise InvalidField("update_mask", f"{path!r} is none of {', '.join(sorted(known))}")


def _check(spec: AgentSpec) -> None:
    if len(spec.name) > NAME_CHARS or not spec.name.isprintable():
        raise InvalidField("name", f"must have at most {NAME_CHARS} printable characters")
    check_agent(spec.agent)
    check_metadata(spec.metadata)
