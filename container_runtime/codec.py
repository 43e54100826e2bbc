"""Owns how records are written down as JSON; knows neither the database nor the files."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from container_runtime.model import (
    Ending,
    Limits,
    LostReason,
    Outcome,
    PtySize,
    StartSpec,
    StartStage,
)
from container_runtime.records import (
    ContainerRecord,
    ContainerRequest,
    ContainerState,
    ExecutionRecord,
    ExecutionRequest,
    Size,
    SpoolPolicy,
    SpoolSpec,
    Totals,
)

Fields = dict[str, Any]

_dump = json.JSONEncoder(separators=(",", ":"), ensure_ascii=True).encode


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _environment(variables: Mapping[bytes, bytes]) -> Fields:
    return {_text(name): _text(value) for name, value in variables.items()}


def _variables(fields: Fields) -> dict[bytes, bytes]:
    return {_bytes(name): _bytes(value) for name, value in fields.items()}


def _seconds(span: timedelta | None) -> float | None:
    return None if span is None else span.total_seconds()


def _span(seconds: float | None) -> timedelta | None:
    return None if seconds is None else timedelta(seconds=seconds)


def instant(seconds: float) -> datetime:
    """A point in time from seconds since the epoch."""
    return datetime.fromtimestamp(seconds, UTC)


def _maybe_instant(seconds: float | None) -> datetime | None:
    return None if seconds is None else instant(seconds)


def _timestamp(when: datetime | None) -> float | None:
    return None if when is None else when.timestamp()


def dump_container(record: ContainerRecord) -> str:
    """A container as JSON."""
    request = record.request
    return _dump(
        {
            "id": record.id,
            "node": record.node_id,
            "state": record.state,
            "created": record.created.timestamp(),
            "last_active": record.last_active.timestamp(),
            "engine_id": record.engine_id,
            "image_environment": _environment(record.image_environment),
            "image_reference": record.image_reference,
            "failure": record.failure,
            "suspended": _timestamp(record.suspended),
            "request": {
                "id": request.request_id,
                "project": request.project_id,
                "image": request.image,
                "size": request.size,
                "labels": dict(request.labels),
                "environment": _environment(request.environment),
                "idle_timeout": request.idle_timeout.total_seconds(),
                "retention": request.retention.total_seconds(),
                "max_life": _seconds(request.max_life),
            },
        }
    )


def load_container(text: str) -> ContainerRecord:
    """The container that `dump_container` wrote."""
    fields: Fields = json.loads(text)
    request: Fields = fields["request"]
    return ContainerRecord(
        id=fields["id"],
        node_id=fields["node"],
        state=ContainerState(fields["state"]),
        created=instant(fields["created"]),
        last_active=instant(fields["last_active"]),
        engine_id=fields["engine_id"],
        image_environment=_variables(fields["image_environment"]),
        image_reference=fields["image_reference"],
        failure=fields["failure"],
        suspended=_maybe_instant(fields["suspended"]),
        request=ContainerRequest(
            request_id=request["id"],
            project_id=request["project"],
            image=request["image"],
            size=Size(request["size"]),
            labels=request["labels"],
            environment=_variables(request["environment"]),
            idle_timeout=timedelta(seconds=request["idle_timeout"]),
            retention=timedelta(seconds=request["retention"]),
            max_life=_span(request["max_life"]),
        ),
    )


def dump_request(request: ExecutionRequest) -> str:
    """A command as JSON."""
    spec = request.spec
    limits = spec.limits
    return _dump(
        {
            "container": request.container_id,
            "id": spec.exec_id,
            "argv": [_text(argument) for argument in spec.argv],
            "script": None if spec.script is None else _text(spec.script),
            "env": _environment(spec.env),
            "cwd": _text(spec.cwd),
            "root": spec.root,
            "stdin": spec.stdin,
            "pty": None if spec.pty is None else [spec.pty.rows, spec.pty.columns],
            "timeout": _seconds(spec.timeout),
            "grace": spec.grace.total_seconds(),
            "limits": None if limits == Limits() else [getattr(limits, n) for n in _LIMITS],
            "spool": [request.spool.bytes_per_stream, request.spool.policy],
        }
    )


_LIMITS = tuple(Limits.__dataclass_fields__)


def load_request(text: str) -> ExecutionRequest:
    """The command that `dump_request` wrote."""
    fields: Fields = json.loads(text)
    spool_bytes, policy = fields["spool"]
    spec = StartSpec(
        exec_id=fields["id"],
        argv=tuple(_bytes(argument) for argument in fields["argv"]),
        script=None if fields["script"] is None else _bytes(fields["script"]),
        env=_variables(fields["env"]),
        cwd=_bytes(fields["cwd"]),
        root=fields["root"],
        stdin=fields["stdin"],
        pty=None if fields["pty"] is None else PtySize(*fields["pty"]),
        timeout=_span(fields["timeout"]),
        grace=timedelta(seconds=fields["grace"]),
        limits=Limits() if fields["limits"] is None else Limits(*fields["limits"]),
    )
    return ExecutionRequest(fields["container"], spec, SpoolSpec(spool_bytes, SpoolPolicy(policy)))


def dump_progress(record: ExecutionRecord) -> str:
    """How far an execution came, as JSON."""
    return _dump(
        {
            "started": _timestamp(record.started),
            "ended": _timestamp(record.ended),
            "outcome": None if record.outcome is None else _outcome_fields(record.outcome),
            "stdout": _totals_fields(record.stdout),
            "stderr": _totals_fields(record.stderr),
            "stdin_bytes": record.stdin_bytes,
        }
    )


def load_execution(created: float, request: str, progress: str) -> ExecutionRecord:
    """The execution that `dump_request` and, unless it is empty, `dump_progress` wrote."""
    if not progress:
        return ExecutionRecord(load_request(request), instant(created))
    fields: Fields = json.loads(progress)
    return ExecutionRecord(
        request=load_request(request),
        created=instant(created),
        started=_maybe_instant(fields["started"]),
        ended=_maybe_instant(fields["ended"]),
        outcome=None if fields["outcome"] is None else _outcome(fields["outcome"]),
        stdout=Totals(*fields["stdout"]),
        stderr=Totals(*fields["stderr"]),
        stdin_bytes=fields["stdin_bytes"],
    )


def _totals_fields(totals: Totals) -> list[int]:
    return [totals.total, totals.gap_offset, totals.gap_bytes]


def _outcome_fields(outcome: Outcome) -> Fields:
    return {
        "ending": outcome.ending,
        "code": outcome.code,
        "signal": outcome.signal,
        "stage": outcome.stage,
        "errno": outcome.errno,
        "message": outcome.message,
        "lost": outcome.lost,
        "bytes": [outcome.stdout_bytes, outcome.stderr_bytes],
        "pipe_held": outcome.pipe_held,
        "duration": outcome.duration.total_seconds(),
        "cpu": outcome.cpu.total_seconds(),
        "max_rss": outcome.max_rss_bytes,
    }


def _outcome(fields: Fields) -> Outcome:
    stdout_bytes, stderr_bytes = fields["bytes"]
    return Outcome(
        ending=Ending(fields["ending"]),
        code=fields["code"],
        signal=fields["signal"],
        stage=None if fields["stage"] is None else StartStage(fields["stage"]),
        errno=fields["errno"],
        message=fields["message"],
        lost=None if fields["lost"] is None else LostReason(fields["lost"]),
        stdout_bytes=stdout_bytes,
        stderr_bytes=stderr_bytes,
        pipe_held=fields["pipe_held"],
        duration=timedelta(seconds=fields["duration"]),
        cpu=timedelta(seconds=fields["cpu"]),
        max_rss_bytes=fields["max_rss"],
    )
