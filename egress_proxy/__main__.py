"""Starts the egress proxy: `python -m egress_proxy`, configured by `EGRESS_…` variables."""

import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import structlog
import uvloop

from egress_proxy.attachments import Attachments
from egress_proxy.capture.handover import Handover, start_helper
from egress_proxy.capture.privileges import drop_capabilities
from egress_proxy.config import Config
from egress_proxy.connection import Tools
from egress_proxy.dialling import Dialler, Resolver, SystemResolver
from egress_proxy.gateways import Gateways
from egress_proxy.http_proxy import serve_http
from egress_proxy.limits import Limits
from egress_proxy.servicers.egress import EgressServicer
from egress_proxy.splicing import Pipes
from egress_proxy.store import AttachmentStore
from egress_proxy.synthetic import KeptNames
from egress_proxy.traffic_log import TrafficLog
from workroom.errors import WorkroomError
from workroom.rpc.logs import configure_logs
from workroom.rpc.server import Drain, Serving, serving
from workroom.rpc.signals import until_signalled

log = structlog.get_logger(__name__)

SERVICES = ("workroom.egress.v1.EgressService",)


@asynccontextmanager
async def running(
    config: Config, *, resolver: Resolver | None = None, limits: Limits | None = None
) -> AsyncIterator[Serving]:
    """The service, serving while the body runs."""
    home = config.folder(os.environ).create()
    limits = limits or Limits()
    exceptions = config.operator_exceptions()
    drain = Drain()
    pipes = Pipes()
    async with (
        SystemResolver.opened() as system,
        AttachmentStore.opened(home.db / "egress.db") as store,
        TrafficLog.opened(
            home.db / "traffic.db",
            retention=config.traffic_retention,
            max_records=config.traffic_records,
        ) as traffic,
    ):
        dialler = Dialler(resolver or system, limits, exceptions)
        tools = Tools(dialler, traffic, pipes, limits, serve_http)
        handover = Handover(home.socket("egress-helper"))
        async with Gateways.opened(handover, tools, KeptNames(traffic)) as gateways:
            traffic.when_broken(lambda: gateways.cut_all("log_unavailable"))
            attachments = Attachments(store, gateways)
            await attachments.take_up()
            servicer = EgressServicer(attachments, traffic, drain, exceptions)
            async with serving(
                [servicer.register],
                config.listener(home),
                services=SERVICES,
                grace=config.grace,
                drain=drain,
            ) as server:
                yield server
        pipes.close()


async def serve(config: Config) -> None:
    """Serves until a signal comes."""
    async with running(config):
        await until_signalled()


def prepare(config: Config) -> None:
    """Starts the privileged helper where we may, and gives up what only that needs."""
    home = config.folder(os.environ).create()
    if os.geteuid() == 0 and config.capture:
        start_helper(home.socket("egress-helper"), home.log / "egress-helper.log")
    drop_capabilities()


def main() -> int:
    """Runs the service; 1 when it cannot start, with the reason in the log."""
    failed = False
    try:
        config = Config.from_env(os.environ)
        configure_logs(config.log_level, service="egress_proxy")
        prepare(config)
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
