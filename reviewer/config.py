"""Owns the reviewer's settings: what each means, its default, and how it is read, once."""

from collections.abc import Mapping
from datetime import timedelta
from importlib.resources import files
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, SecretStr

from reviewer.rules.prefixes import InvalidRules, Rules, load_rules
from workroom.paths import Home
from workroom.rpc.auth import token_verifier
from workroom.rpc.config import ConfigError, from_env
from workroom.rpc.server import Listener
from workroom.rpc.tls import ServerTls

PREFIX = "REVIEWER_"


class Config(BaseModel):
    """Settings, from variables with the prefix `REVIEWER_`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    home: Path | None = None
    """Folder of the installation; by default that of `WORKROOM_HOME`."""
    address: str = ""
    """Where to listen: `unix:/path` or `host:port`; by default `reviewer.sock` in the home."""
    token: SecretStr | None = None
    """The key that callers must bring; on TCP there must be one, or mutual TLS."""
    tls: ServerTls | None = None
    """Certificate, key and the authority of clients, for TCP."""
    log_level: str = "info"
    grace: timedelta = timedelta(seconds=10)
    """How long calls may take to end when the reviewer stops."""
    rules_file: Path | None = None
    """Rules that are added to the default ones, as YAML."""
    retention: timedelta = Field(default=timedelta(days=30), gt=timedelta())
    """How long decisions are kept."""

    @classmethod
    def from_env(cls, environ: Mapping[str, str]) -> Self:
        """Raises `ConfigError`."""
        return from_env(cls, PREFIX, environ)

    def folder(self, environ: Mapping[str, str]) -> Home:
        """The installation's folder. Raises `UnusablePath`."""
        return Home(self.home.absolute()) if self.home else Home.from_env(environ)

    def listener(self, home: Home) -> Listener:
        """Where to listen and who may call."""
        address = self.address or f"unix:{home.socket('reviewer')}"
        verifier = token_verifier(self.token.get_secret_value()) if self.token else None
        return Listener(address, verifier, self.tls)

    def rules(self) -> Rules:
        """The default rules and the operator's. Raises `ConfigError` with the line at fault."""
        rules = load_rules((files("reviewer.rules") / "default.yaml").read_text("utf-8"))
        if self.rules_file is None:
            return rules
        variable = f"{PREFIX}RULES_FILE"
        try:
            return rules.joined(load_rules(self.rules_file.read_text("utf-8")))
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError([f"{variable}: cannot read {self.rules_file}: {error}"]) from None
        except InvalidRules as error:
            raise ConfigError([f"{variable}: {self.rules_file}, {error}"]) from None
