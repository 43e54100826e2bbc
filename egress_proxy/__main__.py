"""Starts the egress proxy: `python -m egress_proxy`, configured by `EGRESS_…` variables."""

import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import structlog
import uvloop

from egress_proxy.attachments import Attachments
from egress_proxy.config import Config
from egress_proxy.servicer import EgressServicer
from egress_proxy.store import AttachmentStore
from workroom.errors import WorkroomError
from workroom.rpc.logs import configure_logs
from workroom.rpc.server import Serving, serving
from workroom.rpc.signals import until_signalled

log = structlog.get_logger(__name__)

SERVICES = ("workroom.egress.v1.EgressService",)


@asynccontextmanager
async def running(config: Config) -> AsyncIterator[Serving]:
    """The service, serving while the body runs."""
    home = config.folder(os.environ).create()
    async with (
        AttachmentStore.opened(home.db / "egress.db") as store,
        serving(
            [EgressServicer(Attachments(store)).register],
            config.listener(home),
            services=SERVICES,
            grace=config.grace,
        ) as server,
    ):
        yield server


async def serve(config: Config) -> None:
    """Serves until a signal comes."""
    async with running(config):
        await until_signalled()


def main() -> int:
    """Runs the service; 1 when it cannot start, with the reason in the log."""
    failed = False
    try:
        config = Config.from_env(os.environ)
        configure_logs(config.log_level, service="egress_proxy")
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
