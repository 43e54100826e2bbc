"""Owns which model a session talks to: the deployment's, or what the session asks for instead.

Must not know where settings come from.
"""

from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from orchestrator.models.chat import ChatProtocol
from orchestrator.models.clients import Endpoint, HttpClients, Limits
from orchestrator.models.http import ModelServer
from orchestrator.models.model import Model
from orchestrator.models.responses import ResponsesProtocol
from orchestrator.models.retry import Retries, RetryPolicy
from orchestrator.models.script_loader import load_scripts
from orchestrator.models.scripted import ScriptedModel
from orchestrator.models.server_model import ServerModel, WireProtocol
from workroom.errors import InvalidField

Protocol = Literal["responses", "chat", "scripted"]
PROTOCOLS: tuple[Protocol, ...] = ("responses", "chat", "scripted")

_MAX_ENDPOINTS = 64


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """The deployment's model.

    `base_url` is the server's, `/v1` included; for `scripted` it is the path of a script, or of
    a folder of scripts among which the model name chooses. `model` may be empty where every
    session names its own. `allowed_base_urls` are the other servers that a session may name.

    Errors: `InvalidField`.
    """

    protocol: Protocol
    base_url: str
    api_key: str = field(default="", repr=False)
    model: str = ""
    allowed_base_urls: tuple[str, ...] = ()
    limits: Limits = Limits()
    retry: RetryPolicy = RetryPolicy()

    def __post_init__(self) -> None:
        if self.protocol not in PROTOCOLS:
            raise InvalidField("protocol", f"{self.protocol!r} is none of {', '.join(PROTOCOLS)}")
        if not self.base_url:
            what = "a path" if self.protocol == "scripted" else "a URL such as http://host:8000/v1"
            raise InvalidField("base_url", f"is not set; give {what}")
        if self.protocol != "scripted":
            Endpoint(self.base_url, self.api_key)
        for allowed in self.allowed_base_urls:
            Endpoint(allowed)


@dataclass(frozen=True, slots=True)
class ModelOverride:
    """What a session asks for instead; empty means the deployment's.

    The deployment's key is never sent to another server than its own: with `base_url` goes the
    `api_key` given here, or none.
    """

    model: str = ""
    base_url: str = ""
    api_key: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class ChosenModel:
    """Whom to ask, and the name to ask for (`ModelRequest.model`)."""

    model: Model
    name: str


class ModelCatalog:
    """Chooses models. One per process: it keeps the connections."""

    def __init__(
        self, settings: ModelSettings, clients: HttpClients, scripted: ScriptedModel | None
    ) -> None:
        self._settings = settings
        self._clients = clients
        self._scripted = scripted
        self._servers: OrderedDict[Endpoint, ServerModel] = OrderedDict()

    @classmethod
    @asynccontextmanager
    async def open(cls, settings: ModelSettings) -> AsyncIterator["ModelCatalog"]:
        """Read the scripts, if any, and open the connection pool.

        Errors: `ScriptInvalid`.
        """
        scripted = None
        if settings.protocol == "scripted":
            scripted = ScriptedModel(load_scripts(Path(settings.base_url)))
        async with HttpClients.open(settings.limits) as clients:
            yield cls(settings, clients, scripted)

    def choose(self, override: ModelOverride = ModelOverride()) -> ChosenModel:
        """The model for a session.

        Errors: `InvalidField` (`model`, `model_base_url`) when none is named, or the server is
        not one that sessions may name.
        """
        name = override.model or self._settings.model
        if self._scripted is not None:
            if override.base_url:
                raise InvalidField("model_base_url", "cannot be set where a script is played")
            return ChosenModel(self._scripted, name or "scripted")
        if not name:
            raise InvalidField("model", "is not set, and the deployment has no default model")
        return ChosenModel(self._server(self._endpoint(override)), name)

    def _endpoint(self, override: ModelOverride) -> Endpoint:
        own = Endpoint(self._settings.base_url, self._settings.api_key)
        if not override.base_url:
            return Endpoint(own.address, override.api_key) if override.api_key else own
        try:
            wanted = Endpoint(override.base_url, override.api_key)
        except InvalidField as error:
            raise InvalidField(f"model_{error.field}", error.problem) from error
        if wanted.address == own.address:
            return wanted if wanted.secret else own
        if wanted.address not in {
            Endpoint(url).address for url in self._settings.allowed_base_urls
        }:
            raise InvalidField(
                "model_base_url", f"{wanted.address} is not one that sessions may name here"
            )
        return wanted

    def _server(self, endpoint: Endpoint) -> ServerModel:
        """Kept per endpoint: a protocol remembers what its server refuses."""
        if endpoint not in self._servers:
            speaks: WireProtocol = (
                ChatProtocol() if self._settings.protocol == "chat" else ResponsesProtocol()
            )
            server = ModelServer(self._clients, endpoint, self._settings.limits)
            retries = Retries(self._settings.retry)
            self._servers[endpoint] = ServerModel(server, speaks, retries)
            if len(self._servers) > _MAX_ENDPOINTS:
                self._servers.popitem(last=False)
        self._servers.move_to_end(endpoint)
        return self._servers[endpoint]
