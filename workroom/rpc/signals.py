"""Owns what SIGTERM and SIGINT do to a process: the first asks it to stop, the second ends it."""

import asyncio
import os
import signal

import structlog

log = structlog.get_logger(__name__)


async def until_signalled() -> signal.Signals:
    """Returns at the first SIGTERM or SIGINT, and says which.

    From then on (and when this wait was cancelled, because the process stops for another reason)
    the next one ends the process at once with status 128 + its number. Call it once a process.
    """
    loop = asyncio.get_running_loop()
    asked: asyncio.Future[signal.Signals] = loop.create_future()

    def heard(number: signal.Signals) -> None:
        if asked.done():
            os._exit(128 + number)
        asked.set_result(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, heard, number)
    received = await asked
    log.info("asked to stop", signal=received.name)
    return received
