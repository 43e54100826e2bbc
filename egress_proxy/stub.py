"""Owns answering a container's DNS queries: synthetic addresses for what may be reached."""

import time
from typing import Protocol

from egress_proxy import dns
from egress_proxy.limits import Bucket, Limits
from egress_proxy.names import Name
from egress_proxy.policy import Decision, Effect
from egress_proxy.synthetic import Synthetic, TooManyNames
from egress_proxy.traffic import Attempt, Ending, Kind, Owner, Recorder, TrafficLogUnavailable


class NameRules(Protocol):
    """What the container's policy says of names now."""

    @property
    def owner(self) -> Owner: ...

    def may_resolve(self, name: Name) -> Decision: ...


class Stub:
    """Answers one container's queries. Asks nobody."""

    def __init__(
        self, rules: NameRules, synthetic: Synthetic, recorder: Recorder, limits: Limits
    ) -> None:
        self._rules = rules
        self._synthetic = synthetic
        self._recorder = recorder
        self._bucket = Bucket(limits.queries_per_second, time.monotonic())

    async def answer(self, packet: bytes, resolver: str) -> bytes | None:
        """The answer to a packet that was sent to `resolver`; `None` where none is owed."""
        if not self._bucket.take(time.monotonic()):
            return None
        try:
            query = dns.parse_query(packet)
        except dns.NotAQuery:
            return None
        except dns.BadQuery as bad:
            return bad.answer
        if query.name is None:
            decision = Decision(Effect.DENY, "built-in", "name_malformed")
        else:
            decision = self._rules.may_resolve(query.name)
        try:
            return await self._recorded(query, decision, resolver)
        except TrafficLogUnavailable:
            return dns.failure(query, dns.Code.SERVER_FAILURE)

    async def _recorded(self, query: dns.Query, decision: Decision, resolver: str) -> bytes:
        answer, how = dns.no_such_name(query), "no_such_name"
        if decision.effect is not Effect.DENY and query.name is not None:
            answer, how = dns.empty_answer(query), "no_data"
            if query.kind == dns.Type.A:
                try:
                    address = await self._synthetic.address(query.name)
                    answer, how = dns.address_answer(query, address), "answered"
                except TooManyNames:
                    answer, how = dns.failure(query, dns.Code.REFUSED), "too_many_names"
        attempt = Attempt(
            self._rules.owner,
            Kind.DNS_QUERY,
            decision,
            protocol="dns",
            host=query.shown,
            requested_address=resolver,
            query_type=query.kind_name,
        )
        await self._recorder.note(attempt, Ending(how))
        return answer
