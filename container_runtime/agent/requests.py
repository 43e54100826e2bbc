"""Decodes START: what the host asks for becomes a bounded `Request`, or a reason to refuse it."""

from __future__ import annotations

from . import wire
from .execution import Request
from .spawning import Command, StartFailed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .spawning import Environment

FLAG_ROOT, FLAG_STDIN, FLAG_TERMINAL, FLAG_SCRIPT, FLAG_ARCHIVE = 1, 2, 4, 8, 16
"""FLAG_ARCHIVE: the arguments are those of `archive`, run by the supervisor's own interpreter."""


def decode(payload: bytes, environment: Environment) -> Request:
    """ProtocolError when it is malformed; StartFailed(spec) when it cannot be honoured."""
    values = wire.fields(payload, 10)
    exec_id = wire.text(values[0], wire.MAX_ID)
    flags = wire.number(values[1], 0, 31)
    argv = wire.texts(values[2], wire.MAX_ARGUMENTS, wire.MAX_CONTROL)
    pairs = wire.texts(values[3], 2 * wire.MAX_ARGUMENTS, wire.MAX_CONTROL)
    cwd = wire.text(values[4], wire.MAX_PATH)
    rows = wire.number(values[5], 1, 65_535)
    columns = wire.number(values[6], 1, 65_535)
    timeout = wire.number(values[7], -1)
    grace = wire.number(values[8], 0, wire.MAX_GRACE_MS)
    limits = values[9]
    if not isinstance(limits, list) or len(limits) != 6 or not argv or len(pairs) % 2:
        raise wire.ProtocolError("malformed start")
    root = bool(flags & FLAG_ROOT)
    env = dict(environment.of(root))
    if flags & FLAG_TERMINAL:
        env.setdefault(b"TERM", b"xterm-256color")
    env.update(zip(pairs[::2], pairs[1::2], strict=True))
    if flags & FLAG_ARCHIVE:
        argv = [*environment.interpreter, b"from agent.archive import main; main()", *argv]
    _check(argv if not flags & FLAG_SCRIPT else [], [*pairs, *argv, cwd])
    command = Command(
        argv,
        argv[0] if flags & FLAG_SCRIPT else None,
        env,
        cwd,
        root,
        [wire.number(limit, -1, 2**62) for limit in limits],
    )
    return Request(
        exec_id,
        command,
        bool(flags & FLAG_STDIN),
        bool(flags & FLAG_TERMINAL),
        (rows, columns),
        timeout / 1000 if timeout >= 0 else None,
        grace / 1000,
    )


def _check(argv: list[bytes], everything: list[bytes]) -> None:
    if any(b"\0" in item for item in everything):
        raise StartFailed(wire.STAGE_SPEC, 22, "a NUL byte in an argument, variable or path")
    if any(len(item) > wire.MAX_ARGUMENT for item in argv):
        text = f"an argument is longer than {wire.MAX_ARGUMENT} bytes"
        raise StartFailed(wire.STAGE_SPEC, 7, text)
    if argv and not argv[0]:
        raise StartFailed(wire.STAGE_SPEC, 22, "the program's name is empty")
