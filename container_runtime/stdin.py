"""Owns writing to commands' standard input by offset, in bounded time."""

import asyncio
from datetime import timedelta

from container_runtime.errors import OffsetOutOfRange, StdinFull, StdinNotOpen
from container_runtime.execution import Execution
from container_runtime.executions import Executions
from container_runtime.link import ExecutionNotFound, Link, StdinClosed, StdinGap
from container_runtime.supervised import supervised
from workroom.errors import WorkroomError

PATIENCE = timedelta(seconds=5)
"""How long a command may leave what it was sent unread before the caller is told."""

FEEDING = 64 * 1024


async def write_stdin(
    executions: Executions, execution_id: str, offset: int, data: bytes, end: bool
) -> int:
    """Write `data` at `offset`, then end standard input if `end`; returns the offset behind the
    last accepted byte. Bytes that were accepted before are passed over, and a write of nothing
    but such bytes succeeds even if the command has ended since.

    Raises `StdinNotOpen`, `OffsetOutOfRange`, `StdinFull`, `SupervisorUnavailable`,
    `ContainerNotActive`, `ExecutionUnknown`.
    """
    execution = await executions.get(execution_id)
    if execution.over:
        if _repeated(execution, execution.record().stdin_bytes, offset, data):
            return execution.record().stdin_bytes
        raise _closed(execution)
    with supervised(execution.request.container_id):
        link = executions.link_of(execution)
        try:
            status = link.status(execution_id)
            accepted = max(status.stdin_offset, execution.record().stdin_bytes)
            if status.stdin_ended and _repeated(execution, accepted, offset, data):
                return accepted
            await _write(link, execution, offset, data)
            if end:
                await link.end_stdin(execution_id)
        except (StdinClosed, ExecutionNotFound):
            raise _closed(execution) from None
    accepted = max(execution.record().stdin_bytes, offset + len(data))
    execution.took_stdin(accepted)
    return accepted


async def _write(link: Link, execution: Execution, offset: int, data: bytes) -> None:
    try:
        async with asyncio.timeout(PATIENCE.total_seconds()):
            await link.stdin(execution.id, offset, data)
    except StdinGap as error:
        metadata = {"execution_id": execution.id, **error.metadata}
        message = f"offset {offset} is past what was accepted"
        raise OffsetOutOfRange.rebuild(message, metadata) from None
    except TimeoutError:
        accepted = link.status(execution.id).stdin_offset
        execution.took_stdin(accepted)
        raise StdinFull(
            f"the command has not read on for {PATIENCE.total_seconds():g} s; "
            f"{accepted} bytes were accepted",
            retry_after=PATIENCE,
            execution_id=execution.id,
            accepted_offset=str(accepted),
        ) from None


async def feed_stdin(executions: Executions, execution_id: str, data: bytes) -> None:
    """Write all of `data` and end standard input, however slowly the command reads; returns early
    when it closes its side or ends."""
    offset = 0
    while offset < len(data):
        piece = data[offset : offset + FEEDING]
        try:
            await write_stdin(executions, execution_id, offset, piece, end=False)
            offset += len(piece)
        except StdinFull:
            continue
        except WorkroomError:
            return
    try:
        await write_stdin(executions, execution_id, offset, b"", end=True)
    except WorkroomError:
        return


def _repeated(execution: Execution, accepted: int, offset: int, data: bytes) -> bool:
    spec = execution.request.spec
    return (spec.stdin or spec.pty is not None) and offset + len(data) <= accepted


def _closed(execution: Execution) -> StdinNotOpen:
    problem = "the command has ended" if execution.over else "it is not open"
    return StdinNotOpen(
        f"standard input of execution {execution.id} cannot be written: {problem}",
        execution_id=execution.id,
    )
