"""Owns what is recorded of traffic, as plain frozen values. Knows no storage and no wire."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Protocol

import grpc

from egress_proxy.policy import Decision, Effect
from workroom.errors import WorkroomError


class TrafficLogUnavailable(WorkroomError):
    """The traffic log cannot be written, so nothing goes out."""

    code = grpc.StatusCode.UNAVAILABLE
    reason = "TRAFFIC_LOG_UNAVAILABLE"


class Kind(StrEnum):
    """What a program did."""

    CONNECTION = "connection"
    REQUEST = "request"
    DNS_QUERY = "dns_query"


@dataclass(frozen=True)
class Owner:
    """Whose traffic it is."""

    container_id: str
    project_id: str
    session_id: str
    policy_revision: int


@dataclass(frozen=True)
class Attempt:
    """What a program tried, and what was decided, before anything is let out."""

    owner: Owner
    kind: Kind
    decision: Decision
    protocol: str = ""
    host: str = ""
    port: int = 0
    requested_address: str = ""
    dialled_address: str = ""
    method: str = ""
    path: str = ""
    query_type: str = ""


@dataclass(frozen=True)
class Ending:
    """How it went. `how` is a fixed word."""

    how: str
    sent_bytes: int = 0
    received_bytes: int = 0
    status: int = 0


@dataclass(frozen=True)
class Record:
    """An attempt as it is remembered. `duration` is `None` while it is open."""

    id: int
    change: int
    attempt: Attempt
    ending: Ending
    create_time: datetime
    duration: timedelta | None


@dataclass(frozen=True)
class Filter:
    """Which records are meant; what is empty means any."""

    container_id: str = ""
    session_id: str = ""
    project_id: str = ""
    effects: Sequence[Effect] = ()
    kinds: Sequence[Kind] = ()


class Recorder(Protocol):
    """Where attempts are written down. Both raise `TrafficLogUnavailable`."""

    async def begin(self, attempt: Attempt) -> int:
        """Records what may now go on; returns once that is safe."""

    def end(self, number: int, ending: Ending) -> None:
        """Records how it went; safe a moment later."""

    async def note(self, attempt: Attempt, ending: Ending) -> None:
        """Records what is over as soon as it began."""
