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
    head, exec_id, cwd, argv, variables = wire.split_start(payload)
    flags, rows, columns, timeout, grace = head[:5]
    if len(exec_id) > wire.MAX_ID or len(cwd) > wire.MAX_PATH or not rows or not columns:
        raise wire.ProtocolError("malformed start")
    if len(argv) > wire.MAX_ARGUMENTS or len(variables) > wire.MAX_ARGUMENTS:
        raise wire.ProtocolError("malformed start")
    root = bool(flags & FLAG_ROOT)
    env = dict(environment.of(root))
    if flags & FLAG_TERMINAL:
        env.setdefault(b"TERM", b"xterm-256color")
    for variable in variables:
        name, _, value = variable.partition(b"=")
        env[name] = value
    if flags & FLAG_ARCHIVE:
        argv = [*environment.interpreter, b"from agent.archive import main; main()", *argv]
    script = argv[0] if flags & FLAG_SCRIPT else None
    if script is None:
        _check(argv)
    command = Command(argv, script, env, cwd, root, head[5:11])
    return Request(
        exec_id,
        command,
        bool(flags & FLAG_STDIN),
        bool(flags & FLAG_TERMINAL),
        (rows, columns),
        timeout / 1000 if timeout >= 0 else None,
        min(max(grace, 0), wire.MAX_GRACE_MS) / 1000,
    )


def _check(argv: list[bytes]) -> None:
    if max(map(len, argv)) > wire.MAX_ARGUMENT:
        text = f"an argument is longer than {wire.MAX_ARGUMENT} bytes"
        raise StartFailed(wire.STAGE_SPEC, 7, text)
    if not argv[0]:
        raise StartFailed(wire.STAGE_SPEC, 22, "the program's name is empty")
