"""Owns moving bytes from socket to socket inside the kernel. Knows no protocol."""

import asyncio
import fcntl
import os
import socket
from collections.abc import Callable

PIPE_BYTES = 256 * 1024
KEPT_PIPES = 64
_TURN = 32
"""Moves after which other connections get their turn."""
_F_SETPIPE_SZ = 1031
_FLAGS = os.SPLICE_F_MOVE | os.SPLICE_F_NONBLOCK

Count = Callable[[int], None]


class Pipes:
    """Pipes for the moment in which bytes are under way; an idle connection holds none."""

    def __init__(self) -> None:
        self._free: list[tuple[int, int]] = []

    def take(self) -> tuple[int, int]:
        """An empty pipe: where to read, where to write. Raises OSError."""
        if self._free:
            return self._free.pop()
        pipe = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            fcntl.fcntl(pipe[1], _F_SETPIPE_SZ, PIPE_BYTES)
        except OSError:
            pass  # the user's share of pipe memory is used up: it stays small
        return pipe

    def give(self, pipe: tuple[int, int]) -> None:
        """Takes back an empty pipe."""
        if len(self._free) < KEPT_PIPES:
            self._free.append(pipe)
        else:
            drop(pipe)

    def close(self) -> None:
        """Drops those that are kept."""
        while self._free:
            drop(self._free.pop())


def drop(pipe: tuple[int, int]) -> None:
    """Closes a pipe, with what is in it."""
    os.close(pipe[0])
    os.close(pipe[1])


async def relay(
    client: socket.socket, server: socket.socket, pipes: Pipes, sent: Count, received: Count
) -> None:
    """Moves bytes both ways until both sides have ended theirs. Raises OSError.

    The end of one side is passed on while the other goes on.
    """
    try:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(pump(client, server, pipes, sent))
            tasks.create_task(pump(server, client, pipes, received))
    except* OSError as group:
        raise ConnectionResetError(str(group.exceptions[0])) from group


async def pump(source: socket.socket, target: socket.socket, pipes: Pipes, count: Count) -> None:
    """Moves bytes one way until the source ends, and ends the target's then. Raises OSError."""
    pipe: tuple[int, int] | None = None
    turn = 0
    try:
        while True:
            pipe = pipe or pipes.take()
            try:
                moved = os.splice(source.fileno(), pipe[1], PIPE_BYTES, flags=_FLAGS)
            except BlockingIOError:
                pipes.give(pipe)
                pipe = None
                await readable(source)
                continue
            if not moved:
                pipes.give(pipe)
                pipe = None
                break
            await _drain(pipe[0], target, moved)
            count(moved)
            turn += 1
            if turn % _TURN == 0:
                await asyncio.sleep(0)
    finally:
        if pipe is not None:
            drop(pipe)
    try:
        target.shutdown(socket.SHUT_WR)
    except OSError:
        pass  # it is gone already


async def _drain(pipe: int, target: socket.socket, count: int) -> None:
    while count:
        try:
            count -= os.splice(pipe, target.fileno(), count, flags=_FLAGS)
        except BlockingIOError:
            await writable(target)


async def readable(each: socket.socket) -> None:
    """Returns when there is something to read, or an end."""
    loop = asyncio.get_running_loop()
    future = loop.create_future()
    loop.add_reader(each.fileno(), _settle, future)
    try:
        await future
    finally:
        loop.remove_reader(each.fileno())


async def writable(each: socket.socket) -> None:
    """Returns when something can be written."""
    loop = asyncio.get_running_loop()
    future = loop.create_future()
    loop.add_writer(each.fileno(), _settle, future)
    try:
        await future
    finally:
        loop.remove_writer(each.fileno())


def _settle(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)
