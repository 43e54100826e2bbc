"""Owns what SIGTERM, SIGINT and SIGHUP do to a process: asked once it stops, twice it ends."""

import asyncio
import os
import signal

import structlog

log = structlog.get_logger(__name__)


async def until_signalled() -> signal.Signals:
    """Returns at the first SIGTERM, SIGINT or SIGHUP, and says which.

    From then on (and when this wait was cancelled, because the process stops for another reason)
    the next SIGTERM or SIGINT ends the process at once with status 128 + its number. SIGHUP never
    does: the kernel sends it for the death of a parent, once for each of the parent's threads.
    Call it once a process.
    """
    loop = asyncio.get_running_loop()
    asked: asyncio.Future[signal.Signals] = loop.create_future()

    def heard(number: signal.Signals) -> None:
        if not asked.done():
            asked.set_result(number)
        elif number != signal.SIGHUP:
            os._exit(128 + number)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, heard, number)
    received = await asked
    log.info("asked to stop", signal=received.name)
    return received
