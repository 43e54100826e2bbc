"""Owns the one look into a process that does not end when it should."""

import asyncio
import gc
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import structlog

log = structlog.get_logger(__name__)


Stacks = dict[str, list[str]]


@contextmanager
def watching(
    what: str, limit: timedelta, more: Callable[[], Stacks] = dict[str, list[str]]
) -> Iterator[None]:
    """Logs once where every thread and task stands, if the body takes longer than `limit`.

    `more` gives further stacks. A thread of its own does so: it works although the loop is stuck.
    """
    loop = asyncio.get_running_loop()

    def report() -> None:
        found = {**stacks(loop), **more()}
        log.error("taking too long", what=what, limit_s=limit.total_seconds(), stacks=found)

    timer = threading.Timer(limit.total_seconds(), report)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def stacks(loop: asyncio.AbstractEventLoop) -> Stacks:
    """Where every thread, and every task of `loop`, stands; callable from any thread."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    found = {
        f"thread {names.get(ident, ident)}": [
            f"{entry.filename}:{entry.lineno} {entry.name}"
            for entry in traceback.extract_stack(frame)
        ]
        for ident, frame in sys._current_frames().items()
    }
    for task in _tasks(loop):
        found[f"task {task.get_name()} {id(task):x}"] = stack_of(task.get_coro())
    return found


def stack_of(awaitable: Any) -> list[str]:
    """Where a suspended coroutine stands, outermost first, as far as Python can see into it."""
    found = []
    while awaitable is not None:
        awaitable = _generator_behind(awaitable)
        for kind, awaited in (("cr", "cr_await"), ("ag", "ag_await"), ("gi", "gi_yieldfrom")):
            code = getattr(awaitable, f"{kind}_code", None)
            if code is not None:
                line = getattr(getattr(awaitable, f"{kind}_frame", None), "f_lineno", 0)
                found.append(f"{code.co_filename}:{line} {code.co_qualname}")
                awaitable = getattr(awaitable, awaited, None)
                break
        else:
            break
    return found


def _generator_behind(awaitable: Any) -> Any:
    """The async generator whose next value is awaited, which the awaitable itself does not tell."""
    if type(awaitable).__name__ not in ("async_generator_asend", "async_generator_athrow"):
        return awaitable
    return next((each for each in gc.get_referents(awaitable) if hasattr(each, "ag_code")), None)


def _tasks(loop: asyncio.AbstractEventLoop) -> set[asyncio.Task[Any]]:
    try:
        return asyncio.all_tasks(loop)
    except RuntimeError:  # the set kept changing while it was copied
        return set()
