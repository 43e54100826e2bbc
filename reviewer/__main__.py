"""Starts the reviewer: `python -m reviewer`, configured by `REVIEWER_…` variables."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import structlog
import uvloop

from reviewer.config import Config
from reviewer.reviews import Reviews
from reviewer.servicer import ReviewerServicer
from reviewer.store import DecisionStore
from workroom.errors import WorkroomError
from workroom.rpc.logs import configure_logs
from workroom.rpc.server import Serving, serving
from workroom.rpc.signals import until_signalled

log = structlog.get_logger(__name__)

SERVICES = ("workroom.reviewer.v1.ReviewerService",)


@asynccontextmanager
async def running(config: Config) -> AsyncIterator[Serving]:
    """The service, serving while the body runs."""
    rules = config.rules()
    home = config.folder(os.environ).create()
    async with DecisionStore.opened(home.db / "reviewer.db") as store:
        reviews = Reviews(rules, store, retention=config.retention)
        async with asyncio.TaskGroup() as tasks:
            cleaning = tasks.create_task(reviews.clean_forever())
            try:
                async with serving(
                    [ReviewerServicer(reviews).register],
                    config.listener(home),
                    services=SERVICES,
                    grace=config.grace,
                ) as server:
                    yield server
            finally:
                cleaning.cancel()


async def serve(config: Config) -> None:
    """Serves until a signal comes."""
    async with running(config):
        await until_signalled()


def main() -> int:
    """Runs the service; 1 when it cannot start, with the reason in the log."""
    failed = False
    try:
        config = Config.from_env(os.environ)
        configure_logs(config.log_level, service="reviewer")
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
