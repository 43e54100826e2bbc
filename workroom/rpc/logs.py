"""Owns how a process logs: structured lines on stderr, tokens left out, one format for all."""

import logging
import re
import sys
from collections.abc import Mapping, MutableMapping
from functools import lru_cache
from typing import Any, TextIO

import structlog

REDACTED = "[redacted]"

_SECRET_KEY = re.compile(
    r"(^|[_.-])(token|secret|password|passwd|authorization|credential|cookie|placeholder"
    r"|api[_-]?key|private[_-]?key|access[_-]?key|encryption[_-]?key)s?($|[_.-](?!id$|name$))",
    re.IGNORECASE,
)
_BEARER = re.compile(r"(?i)\b(bearer|basic) +[A-Za-z0-9._~+/=-]{6,}")
_PLAIN = frozenset({bool, int, float, type(None)})
_MAX_DEPTH = 6


def configure_logs(
    level: str = "info", *, service: str | None = None, stream: TextIO | None = None
) -> None:
    """Sends this process's logs to `stream` (stderr by default), JSON unless it is a terminal.

    `level` is a name of the standard `logging` levels, in any case. Raises ValueError for another.
    """
    number = logging.getLevelNamesMapping().get(level.upper())
    if number is None:
        raise ValueError(f"log level {level!r} is not one of debug, info, warning, error, critical")
    target = stream if stream is not None else sys.stderr
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        *([_Named(service)] if service else []),
    ]
    final = _renderers(target)
    structlog.configure(
        processors=[*shared, *final],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.WriteLoggerFactory(file=target),
        cache_logger_on_first_use=False,
    )
    _capture_standard_logging(target, number, shared, final)


def redact(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> Mapping[str, Any]:
    """A structlog processor: replaces values whose key names a secret, and bearer tokens in text.

    Numbers stay: a count of tokens is no token.
    """
    return {
        key: value if key == "exc_info" else _cleaned(key, value, 0) for key, value in event.items()
    }


class _Named:
    """A processor that adds the service's name."""

    def __init__(self, service: str) -> None:
        self._service = service

    def __call__(
        self, _logger: Any, _method: str, event: MutableMapping[str, Any]
    ) -> MutableMapping[str, Any]:
        event.setdefault("service", self._service)
        return event


def _renderers(target: TextIO) -> list[structlog.typing.Processor]:
    if target.isatty():
        return [redact, structlog.dev.ConsoleRenderer()]
    return [
        structlog.processors.StackInfoRenderer(),
        structlog.processors.format_exc_info,
        redact,
        structlog.processors.JSONRenderer(default=str),
    ]


def _capture_standard_logging(
    target: TextIO,
    level: int,
    shared: list[structlog.typing.Processor],
    final: list[structlog.typing.Processor],
) -> None:
    """Gives the lines of libraries the same shape; below a warning only where debugging."""
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared,
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *final],
    )
    handler = logging.StreamHandler(target)
    handler.setFormatter(formatter)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level if level <= logging.DEBUG else max(level, logging.WARNING))
    # At debug, grpc logs objects that are being freed: whatever keeps the record crashes later.
    logging.getLogger("grpc").setLevel(logging.WARNING)
    logging.getLogger("asyncio").setLevel(logging.WARNING)


@lru_cache(maxsize=1024)
def _names_secret(key: str) -> bool:
    return _SECRET_KEY.search(key) is not None


def _cleaned(key: str, value: Any, depth: int) -> Any:
    kind = type(value)
    if kind in _PLAIN:
        return value
    if _names_secret(key):
        return REDACTED
    if kind is not str and depth < _MAX_DEPTH:
        if isinstance(value, Mapping):
            return {name: _cleaned(str(name), item, depth + 1) for name, item in value.items()}
        if isinstance(value, list | tuple | set | frozenset):
            return [_cleaned("", item, depth + 1) for item in value]
    text = value if kind is str else str(value)
    return _BEARER.sub(_hidden, text) if " " in text else text


def _hidden(match: re.Match[str]) -> str:
    return f"{match[1]} {REDACTED}"
