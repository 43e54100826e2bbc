"""Owns the runtime's settings: what each means, its default, and how it is read, once."""

import platform
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator

from container_runtime.image.recipe import DEFAULT_BASE_IMAGE
from container_runtime.pool import WARM_MAX, PoolTarget, parse_target
from workroom.paths import Home
from workroom.rpc.auth import token_verifier
from workroom.rpc.config import from_env
from workroom.rpc.server import Listener
from workroom.rpc.tls import ServerTls

PREFIX = "RUNTIME_"


class Config(BaseModel):
    """Settings, from variables with the prefix `RUNTIME_`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    home: Path | None = None
    """Folder of the installation; by default that of `WORKROOM_HOME`."""
    address: str = ""
    """Where to listen: `unix:/path` or `host:port`; by default `runtime.sock` in the home."""
    token: SecretStr | None = None
    """The key that callers must bring. Whoever reaches the runtime owns the host: on TCP there
    must be one, or mutual TLS."""
    tls: ServerTls | None = None
    """Certificate, key and the authority of clients, for TCP."""
    log_level: str = "info"
    grace: timedelta = timedelta(seconds=10)
    """How long calls may take to end when the runtime stops."""
    node_id: str = Field(default_factory=lambda: platform.node() or "node")
    """Names this node in every container."""
    docker_url: str | None = None
    """The engine's socket, `unix:///path`; by default the usual one."""
    runtime_class: str | None = None
    """The engine's runtime for containers (`runsc`, `kata`); by default the engine's own."""
    base_image: str = DEFAULT_BASE_IMAGE
    """The Debian that our own images are built on."""
    max_containers: int = Field(default=100, ge=1, le=100_000)
    """How many containers the node runs at a time, those that wait in the pool included."""
    max_suspended: int = Field(default=1000, ge=1, le=100_000)
    """How many containers that are suspended, or have failed, the node keeps at a time."""
    warm_pool: tuple[str, ...] = ()
    """Containers that are made before they are asked for, as `IMAGE/SIZE=COUNT`: for instance
    `base/small=2,base/medium=1`. At most 64 together; the pool gives way when the node is full."""
    disk_percent: int = Field(default=100, ge=1, le=1000)
    """How much of a size's usual room on disks its containers have here, in percent."""
    bound_disks: bool = True
    """Give each container a size-limited file system for `/workspace` and `/tmp`, where this
    machine allows it (`GetCapabilities` says whether it does)."""
    min_free_bytes: int = Field(default=2 * 2**30, ge=0)
    """New work is refused while less than this is free on the disk that holds the home."""
    reap_interval: timedelta = timedelta(seconds=2)
    """How often containers are looked at for expiry."""

    @field_validator("warm_pool")
    @classmethod
    def _check_pool(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        targets = [parse_target(each) for each in value]
        if sum(target.count for target in targets) > WARM_MAX:
            raise ValueError(f"at most {WARM_MAX} containers may be warm")
        if len({(target.image, target.size) for target in targets}) < len(targets):
            raise ValueError("an image and size is named twice")
        return value

    @property
    def pool_targets(self) -> tuple[PoolTarget, ...]:
        """`warm_pool`, understood."""
        return tuple(parse_target(each) for each in self.warm_pool)

    @classmethod
    def from_env(cls, environ: Mapping[str, str]) -> Self:
        """Raises `ConfigError`."""
        return from_env(cls, PREFIX, environ)

    def folder(self, environ: Mapping[str, str]) -> Home:
        """The installation's folder. Raises `UnusablePath`."""
        return Home(self.home.absolute()) if self.home else Home.from_env(environ)

    def listener(self, home: Home) -> Listener:
        """Where to listen and who may call."""
        address = self.address or f"unix:{home.socket('runtime')}"
        verifier = token_verifier(self.token.get_secret_value()) if self.token else None
        return Listener(address, verifier, self.tls)
