"""Owns who answers for an agent: the deployment's model, a server of its own, or a script."""

import hashlib
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

from orchestrator.errors import ModelNotConfigured
from orchestrator.models.catalog import ModelCatalog, ModelOverride, ModelSettings
from orchestrator.models.chat import ChatProtocol
from orchestrator.models.clients import Endpoint, HttpClients, Limits
from orchestrator.models.errors import ScriptInvalid
from orchestrator.models.http import ModelServer
from orchestrator.models.model import Model
from orchestrator.models.responses import ResponsesProtocol
from orchestrator.models.retry import Retries, RetryPolicy
from orchestrator.models.script_loader import read_script
from orchestrator.models.scripted import ScriptedModel
from orchestrator.models.server_model import ServerModel, WireProtocol
from orchestrator.records import Agent, EndpointProtocol, ModelEndpoint, Script
from orchestrator.secrets import Vault
from workroom.errors import InvalidField

SCRIPTED = "scripted:"
"""What the name of a script is shown with."""

_KEPT = 64


class Providers:
    """Chooses models for agents. One per process: it keeps the connections."""

    def __init__(
        self,
        catalog: ModelCatalog | None,
        default_model: str,
        clients: HttpClients,
        limits: Limits,
        vault: Vault,
    ) -> None:
        self._catalog = catalog
        self._default_model = default_model
        self._clients = clients
        self._limits = limits
        self._vault = vault
        self._kept: OrderedDict[str, Model] = OrderedDict()

    @classmethod
    @asynccontextmanager
    async def open(cls, settings: ModelSettings | None, vault: Vault) -> AsyncIterator["Providers"]:
        """With `settings` None every session has to name a provider. Errors: `ScriptInvalid`."""
        limits = settings.limits if settings else Limits()
        async with AsyncExitStack() as stack:
            catalog = None
            if settings is not None:
                catalog = await stack.enter_async_context(ModelCatalog.open(settings))
            clients = await stack.enter_async_context(HttpClients.open(limits))
            yield cls(catalog, settings.model if settings else "", clients, limits, vault)

    def check(self, agent: Agent) -> Agent:
        """The agent with its model's name settled. Errors: `InvalidField`; `ModelNotConfigured`."""
        match agent.provider:
            case Script(name=name, yaml=yaml):
                try:
                    read_script(yaml, name)
                except ScriptInvalid as error:
                    raise InvalidField("agent.provider.script.yaml", error.message) from error
                return replace(agent, model=SCRIPTED + name)
            case ModelEndpoint(base_url=base_url):
                try:
                    Endpoint(base_url)
                except InvalidField as error:
                    field = f"agent.provider.endpoint.{error.field}"
                    raise InvalidField(field, error.problem) from error
                if not agent.model:
                    raise InvalidField("agent.model", "is needed with a model endpoint")
                return agent
        if self._catalog is None:
            raise ModelNotConfigured(
                "this orchestrator has no model of its own, and the session names none: set "
                "ORCHESTRATOR_MODEL_BASE_URL and ORCHESTRATOR_MODEL, or give agent.provider"
            )
        try:
            name = self._catalog.choose(ModelOverride(model=agent.model)).name
        except InvalidField as error:
            raise InvalidField(f"agent.{error.field}", error.problem) from error
        return replace(agent, model=name)

    def choose(self, agent: Agent) -> tuple[Model, str]:
        """The model of an agent, and the name to ask it for.

        Errors: `InvalidField`; `ScriptInvalid`; `UnusableKeyFile`.
        """
        match agent.provider:
            case Script(name=name, yaml=yaml):
                key = hashlib.sha256(f"{name}\0{yaml}".encode()).hexdigest()
                model = self._kept.get(key) or ScriptedModel({name: read_script(yaml, name)})
                return self._keep(key, model), name
            case ModelEndpoint() as endpoint:
                key = f"{endpoint.protocol}\0{endpoint.base_url}\0{endpoint.sealed_key}"
                return self._keep(key, self._kept.get(key) or self._server(endpoint)), agent.model
        if self._catalog is None:
            raise ModelNotConfigured("this orchestrator no longer has a model of its own")
        chosen = self._catalog.choose(ModelOverride(model=agent.model))
        return chosen.model, chosen.name

    def _server(self, endpoint: ModelEndpoint) -> Model:
        is_chat = endpoint.protocol is EndpointProtocol.CHAT
        speaks: WireProtocol = ChatProtocol() if is_chat else ResponsesProtocol()
        address = Endpoint(endpoint.base_url, self._vault.unseal(endpoint.sealed_key))
        server = ModelServer(self._clients, address, self._limits)
        return ServerModel(server, speaks, Retries(RetryPolicy()))

    def _keep(self, key: str, model: Model) -> Model:
        self._kept[key] = model
        self._kept.move_to_end(key)
        if len(self._kept) > _KEPT:
            self._kept.popitem(last=False)
        return model
