"""Owns a review from the request to the decision that is kept; knows no wire and no execution."""

import asyncio
import uuid
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta

import structlog

from reviewer.decisions import decide
from reviewer.errors import DecisionNotFound, RequestIdReused
from reviewer.records import DecisionRecord, ReviewRequest
from reviewer.rules.classify import Verdict, classify
from reviewer.rules.prefixes import Rules
from reviewer.store import DecisionStore

log = structlog.get_logger(__name__)

CLEANING_INTERVAL = timedelta(hours=1)
"""How often decisions are looked at whose retention has ended."""

_QUICK_CHARS = 4_096
"""An action up to this size is judged at once; a longer one in a thread, others going on."""


def utc_now() -> datetime:
    """The time of the wall clock."""
    return datetime.now(UTC)


class Reviews:
    """Judges actions and keeps what was decided."""

    def __init__(
        self,
        rules: Rules,
        store: DecisionStore,
        *,
        retention: timedelta,
        now: Callable[[], datetime] = utc_now,
    ) -> None:
        self._rules = rules
        self._store = store
        self._retention = retention
        self._now = now

    async def review(self, request: ReviewRequest) -> DecisionRecord:
        """The decision on an action; the same request gets the same one.

        Errors: `NotSupported` for a mode that is not available, `RequestIdReused`.
        """
        kept = await self._store.by_request(request.project_id, request.request_id)
        if kept is None:
            kept = await self._store.add(await self._decided(request))
            log.info(
                "decided",
                decision_id=kept.id,
                session_id=kept.session_id,
                verdict=kept.verdict.value,
                outcome=kept.outcome.value,
                rule_id=kept.rule_id,
            )
        if (kept.action_digest, kept.mode) != (request.digest(), request.mode):
            raise RequestIdReused(
                f"request {request.request_id} was made before, for another action or mode",
                request_id=request.request_id,
            )
        return kept

    async def get(self, decision_id: str) -> DecisionRecord:
        """One decision. Errors: `DecisionNotFound`."""
        found = await self._store.get(decision_id)
        if found is None:
            raise DecisionNotFound(f"no decision {decision_id}", decision_id=decision_id)
        return found

    async def page(
        self, session_id: str, before: int | None, limit: int
    ) -> Sequence[tuple[int, DecisionRecord]]:
        """Decisions with their numbers, newest first, of one session or (empty) of all."""
        return await self._store.page(session_id, before, limit)

    async def clean(self) -> int:
        """Forgets decisions whose retention has ended, and says how many."""
        return await self._store.drop_before(self._now() - self._retention)

    async def clean_forever(self) -> None:
        """Cleans now and then until it is cancelled."""
        while True:
            dropped = await self.clean()
            if dropped:
                log.info("decisions forgotten", decisions=dropped)
            await asyncio.sleep(CLEANING_INTERVAL.total_seconds())

    async def _decided(self, request: ReviewRequest) -> DecisionRecord:
        verdict = await self._verdict(request)
        decision = decide(request.mode, verdict, request.permissions)
        return DecisionRecord(
            id=f"dec_{uuid.uuid4().hex}",
            request_id=request.request_id,
            project_id=request.project_id,
            session_id=request.session_id,
            turn_id=request.turn_id,
            item_id=request.item_id,
            action_digest=request.digest(),
            mode=request.mode,
            verdict=verdict.outcome,
            outcome=decision.outcome,
            reason=decision.reason,
            rule_id=verdict.rule_id,
            matched_command=verdict.command,
            create_time=self._now(),
        )

    async def _verdict(self, request: ReviewRequest) -> Verdict:
        roots = request.permissions.writable_roots
        action = request.action
        size = len(action.script or "") + sum(map(len, action.argv or ()))
        if size <= _QUICK_CHARS:
            return classify(action, self._rules, writable_roots=roots)
        return await asyncio.to_thread(classify, action, self._rules, writable_roots=roots)
