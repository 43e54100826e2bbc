"""Owns the orchestrator's settings, read once from variables that begin with `ORCHESTRATOR_`."""

import os
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, SecretStr

from orchestrator.models.catalog import ModelSettings
from orchestrator.store.leases import DEFAULT_TIME
from workroom.paths import Home
from workroom.rpc.config import from_env

PREFIX = "ORCHESTRATOR_"


class Config(BaseModel):
    """Settings. An empty address means a socket of that service in the home's `run/`."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    model_protocol: Literal["responses", "chat", "scripted"] = "responses"
    """How the model is spoken to; `scripted` plays the script at the base URL, a path."""
    model_base_url: str = ""
    """Up to and with the version (`…/v1`). Empty: every session has to name its own model."""
    model_api_key: SecretStr = SecretStr("")
    """Sent to the model server as a bearer token."""
    model: str = ""
    """The model's name, where an agent names none."""
    address: str = "127.0.0.1:7410"
    """Where callers with a key are listened to."""
    socket: str = ""
    """The owner's socket, `unix:/path`, where no key is needed."""
    runtime_address: str = ""
    """The container runtime."""
    reviewer_address: str = ""
    """The reviewer."""
    egress_address: str = ""
    """The egress proxy."""
    key_file: Path | None = None
    """The key that encrypts secrets at rest; a file of this user with mode 0600, made if missing.

    None: a file of the installation in `$XDG_CONFIG_HOME/workroom`.
    """
    allow_session_endpoints: bool = False
    """Lets callers that are not the owner name model servers for their sessions."""
    database_url: SecretStr = SecretStr("")
    """`postgresql://…` where several orchestrators share one; empty: SQLite in the home."""
    blob_dir: Path | None = None
    """Contents of files and artifacts; orchestrators that share a database share it, too.

    None: a folder in the home.
    """
    lease_time: timedelta = Field(default=DEFAULT_TIME, ge=timedelta(seconds=1))
    """How long the others wait before they take over from an orchestrator that says nothing."""
    max_steps: int = Field(default=100, ge=1)
    """Answers of the model in one turn."""
    max_turn_time: timedelta = Field(default=timedelta(hours=6), gt=timedelta())
    """How long one turn may take."""
    disk_reserve_bytes: int = Field(default=512 * 1024 * 1024, ge=0)
    """Uploads and artifacts are refused when less of the disk is free."""
    grace: timedelta = timedelta(seconds=10)
    """How long calls may go on once the process is asked to stop."""
    log_level: str = "info"
    """debug, info, warning or error."""

    @classmethod
    def from_env(cls, environ: Mapping[str, str] = os.environ) -> Self:
        """Errors: `ConfigError`."""
        return from_env(cls, PREFIX, environ)

    def model_settings(self) -> ModelSettings | None:
        """The deployment's model; None where it has none. Errors: `InvalidField`."""
        if not self.model_base_url:
            return None
        return ModelSettings(
            protocol=self.model_protocol,
            base_url=self.model_base_url,
            api_key=self.model_api_key.get_secret_value(),
            model=self.model,
        )

    def settled(self, home: Home, environ: Mapping[str, str] = os.environ) -> Self:
        """The same with every default that depends on the home filled in."""

        def or_socket(address: str, service: str) -> str:
            return address or f"unix:{home.socket(service)}"

        return self.model_copy(
            update={
                "socket": or_socket(self.socket, "orchestrator"),
                "runtime_address": or_socket(self.runtime_address, "runtime"),
                "reviewer_address": or_socket(self.reviewer_address, "reviewer"),
                "egress_address": or_socket(self.egress_address, "egress"),
                "key_file": self.key_file or _key_file(home, environ),
            }
        )


def _key_file(home: Home, environ: Mapping[str, str]) -> Path:
    named = environ.get("XDG_CONFIG_HOME") or ""
    base = Path(named) if Path(named).is_absolute() else Path.home() / ".config"
    return base / "workroom" / f"{home.installation_id()}.key"
