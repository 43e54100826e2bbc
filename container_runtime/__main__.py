"""Starts the runtime: `python -m container_runtime`, configured by `RUNTIME_…` variables."""

import os
import sys

import structlog
import uvloop

from container_runtime.config import Config
from container_runtime.docker import DockerEngine
from container_runtime.image.build import build_image
from container_runtime.image.recipe import load_recipe
from container_runtime.images import Build
from container_runtime.runtime import Runtime, running
from container_runtime.servicers.containers import ContainerServicer
from container_runtime.servicers.executions import ExecutionServicer
from container_runtime.servicers.files import FileServicer
from container_runtime.setup.api import EngineApi
from container_runtime.setup.engine import default_state_dir
from workroom.errors import WorkroomError
from workroom.rpc.drain import Drain
from workroom.rpc.logs import configure_logs
from workroom.rpc.server import Register, serving
from workroom.rpc.signals import until_signalled

log = structlog.get_logger(__name__)

SERVICES = (
    "workroom.runtime.v1.ContainerService",
    "workroom.runtime.v1.ExecutionService",
    "workroom.runtime.v1.FileService",
)


SWITCH_SECONDS = 0.0005
"""How long a thread that computes (the store's, gRPC's poller) may keep the loop waiting."""


def registrations(runtime: Runtime, drain: Drain) -> list[Register]:
    """Adds every service to a server."""
    return [
        ContainerServicer(runtime, drain).register,
        ExecutionServicer(runtime, drain).register,
        FileServicer(runtime).register,
    ]


def engine_builder(engine: DockerEngine, config: Config) -> Build:
    """Builds our own images on an engine."""

    async def build(name: str) -> None:
        lock = default_state_dir() / "image.lock"
        async with EngineApi(engine.socket) as api:
            await build_image(api, load_recipe(name, config.base_image), log.debug, lock=lock)

    return build


async def serve(config: Config) -> None:
    """Serves until a signal comes."""
    home = config.folder(os.environ)
    drain = Drain()
    async with (
        DockerEngine.connected(config.docker_url, config.runtime_class) as engine,
        running(config, home, engine, build=engine_builder(engine, config)) as runtime,
        serving(
            registrations(runtime, drain),
            config.listener(home),
            services=SERVICES,
            grace=config.grace,
            drain=drain,
        ),
    ):
        await until_signalled()


def main() -> int:
    """Runs the service; 1 when it cannot start, with the reason in the log."""
    failed = False
    sys.setswitchinterval(SWITCH_SECONDS)
    try:
        config = Config.from_env(os.environ)
        configure_logs(config.log_level, service="container_runtime")
        uvloop.run(serve(config))
    except* WorkroomError as group:
        for error in _flat(group):
            log.error("cannot run", reason=error.reason, problem=str(error))
        failed = True
    return 1 if failed else 0


def _flat(group: BaseExceptionGroup[WorkroomError]) -> list[WorkroomError]:
    found: list[WorkroomError] = []
    for error in group.exceptions:
        found += _flat(error) if isinstance(error, BaseExceptionGroup) else [error]
    return found


if __name__ == "__main__":
    sys.exit(main())
