"""Starts the supervisor: `python3 -I -S -c 'from agent.main import main; main(SOCKET)'`."""

from __future__ import annotations

import gc
import os
import sys
from time import sleep

from . import kernel
from .lean import SIG_DFL, SIG_IGN, SIGCHLD, set_wakeup_fd, signal
from .loop import READ, Loop
from .spawning import IGNORED_SIGNALS, Environment
from .supervisor import Supervisor


def main(socket_path: str) -> None:
    """Run for ever. As PID 1 nothing inside can end it; elsewhere signals do."""
    kernel.forbid_tracing()
    kernel.share_one_heap()
    sys.setswitchinterval(0.0005)
    os.umask(0o022)
    os.chdir("/")
    _own_standard_streams()
    _reset_signals()
    loop = Loop()
    supervisor = Supervisor(loop, os.fsencode(socket_path), Environment(dict(os.environb)))
    _reap_on_signal(loop, supervisor)
    supervisor.begin()
    gc.freeze()
    gc.set_threshold(2000, 10, 10)
    while True:
        try:
            loop.run_once()
        except Exception as problem:
            _survive(supervisor, problem)


def _survive(supervisor: Supervisor, problem: Exception) -> None:
    """PID 1 must not die: what was being done is given up, and the host asked to begin anew."""
    place = problem.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    where = f"{place.tb_frame.f_code.co_filename}:{place.tb_lineno}" if place else "?"
    os.write(2, f"{type(problem).__name__} at {where}: {problem}\n".encode())
    supervisor.begin_anew()
    sleep(0.01)


def _reset_signals() -> None:
    """Whatever was ignored when this process was started, commands begin with the defaults."""
    for number in range(1, 65):
        try:
            signal(number, SIG_IGN if number in IGNORED_SIGNALS else SIG_DFL)
        except (OSError, ValueError):
            continue  # KILL, STOP and the C library's own


def _own_standard_streams() -> None:
    """Descriptors 0, 1 and 2 are taken, so that no pipe becomes one of them."""
    null = os.open("/dev/null", os.O_RDWR)
    os.dup2(null, 0)
    if null > 2:
        os.close(null)


def _reap_on_signal(loop: Loop, supervisor: Supervisor) -> None:
    heard, tell = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)

    def died(_events: int) -> None:
        os.read(heard, 4096)
        supervisor.reap()

    loop.watch(heard, READ, died)
    signal(SIGCHLD, lambda _number, _frame: None)
    set_wakeup_fd(tell, warn_on_full_buffer=False)
