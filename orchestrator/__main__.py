"""Runs the orchestrator: `python -m orchestrator`, configured by the environment."""

import sys

import structlog
import uvloop

from orchestrator.composition import running
from orchestrator.config import Config
from orchestrator.turns.failures import first_of
from workroom.errors import WorkroomError
from workroom.paths import Home
from workroom.rpc.logs import configure_logs
from workroom.rpc.server import until_signalled

log = structlog.get_logger(__name__)


SWITCH_SECONDS = 0.001
"""How long the event loop may keep the interpreter from the writer's thread, which gives it away
with each statement; the usual 5 ms would add up to more than the statements take."""


async def main(config: Config, home: Home) -> None:
    """Serve until a signal asks for the end."""
    async with running(config, home):
        await until_signalled()


def run() -> int:
    """Returns the process's exit status."""
    try:
        config = Config.from_env()
        configure_logs(config.log_level, service="orchestrator")
        sys.setswitchinterval(SWITCH_SECONDS)
        uvloop.run(main(config, Home.from_env().create()))
    except (WorkroomError, ExceptionGroup) as error:
        cause = first_of(error)
        if not isinstance(cause, WorkroomError):
            raise
        sys.stderr.write(f"orchestrator: {cause.message}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(run())
