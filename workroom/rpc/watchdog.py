"""Owns the one look into a process that does not end when it should."""

import asyncio
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import structlog

log = structlog.get_logger(__name__)


@contextmanager
def watching(what: str, limit: timedelta) -> Iterator[None]:
    """Logs every thread's and task's stack once, if the body takes longer than `limit`.

    A thread of its own does so: it works although the event loop is stuck.
    """
    loop = asyncio.get_running_loop()

    def report() -> None:
        log.error("taking too long", what=what, limit_s=limit.total_seconds(), stacks=stacks(loop))

    timer = threading.Timer(limit.total_seconds(), report)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def stacks(loop: asyncio.AbstractEventLoop) -> dict[str, list[str]]:
    """Where every thread, and every task of `loop`, stands; callable from any thread."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    found = {
        f"thread {names.get(ident, ident)}": _lines(traceback.extract_stack(frame))
        for ident, frame in sys._current_frames().items()
    }
    for task in _tasks(loop):
        frames = [traceback.extract_stack(frame, limit=1)[0] for frame in task.get_stack()]
        found[f"task {task.get_name()}"] = _lines(traceback.StackSummary.from_list(frames))
    return found


def _tasks(loop: asyncio.AbstractEventLoop) -> set[asyncio.Task[object]]:
    try:
        return asyncio.all_tasks(loop)
    except RuntimeError:  # the set kept changing while it was copied
        return set()


def _lines(summary: traceback.StackSummary) -> list[str]:
    return [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in summary]
