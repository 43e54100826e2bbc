"""Owns the egress proxy's settings: what each means, its default, and how it is read, once."""

from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator

from egress_proxy.exceptions import OperatorException, parse_exception
from workroom.paths import Home
from workroom.rpc.auth import token_verifier
from workroom.rpc.config import from_env
from workroom.rpc.server import Listener
from workroom.rpc.tls import ServerTls

PREFIX = "EGRESS_"


class Config(BaseModel):
    """Settings, from variables with the prefix `EGRESS_`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    home: Path | None = None
    """Folder of the installation; by default that of `WORKROOM_HOME`."""
    address: str = ""
    """Where to listen: `unix:/path` or `host:port`; by default `egress.sock` in the home."""
    token: SecretStr | None = None
    """The key that callers must bring; on TCP there must be one, or mutual TLS."""
    tls: ServerTls | None = None
    """Certificate, key and the authority of clients, for TCP."""
    log_level: str = "info"
    grace: timedelta = timedelta(seconds=10)
    """How long calls may take to end when the proxy stops."""
    capture: bool = True
    """Start the privileged helper, as root; without it only the policy `disabled` is offered."""
    exceptions: tuple[str, ...] = ()
    """Hosts that may lead into ranges which are not public: `HOST[:PORT]=RANGE`, with commas
    between them, such as `index.corp.example:443=10.8.0.0/16`. Loopback counts only where the
    range lies within it; no exception covers a metadata address."""
    traffic_retention: timedelta = timedelta(days=30)
    """How long records of traffic are kept."""
    traffic_records: int = Field(default=1_000_000, ge=1000)
    """How many records of traffic are kept; the oldest go first."""

    @field_validator("exceptions")
    @classmethod
    def _readable(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for text in value:
            parse_exception(text)
        return value

    def operator_exceptions(self) -> tuple[OperatorException, ...]:
        """The exceptions, read."""
        return tuple(parse_exception(text) for text in self.exceptions)

    @classmethod
    def from_env(cls, environ: Mapping[str, str]) -> Self:
        """Raises `ConfigError`."""
        return from_env(cls, PREFIX, environ)

    def folder(self, environ: Mapping[str, str]) -> Home:
        """The installation's folder. Raises `UnusablePath`."""
        return Home(self.home.absolute()) if self.home else Home.from_env(environ)

    def listener(self, home: Home) -> Listener:
        """Where to listen and who may call."""
        address = self.address or f"unix:{home.socket('egress')}"
        verifier = token_verifier(self.token.get_secret_value()) if self.token else None
        return Listener(address, verifier, self.tls)
