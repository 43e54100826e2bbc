"""Owns the egress proxy's settings: what each means, its default, and how it is read, once."""

from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, SecretStr

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
