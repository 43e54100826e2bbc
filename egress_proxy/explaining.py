"""Owns saying what would be decided, without any traffic. Pure."""

from collections.abc import Sequence

from egress_proxy.exceptions import OperatorException, refusal
from egress_proxy.names import Host
from egress_proxy.policy import Decision, Effect, Policy, Request, decide


def explain(
    policies: Sequence[Policy], request: Request, exceptions: Sequence[OperatorException]
) -> Decision:
    """What would become of a request, as far as that can be said without looking its name up."""
    decision = decide(policies, request)
    refused = _refusal(exceptions, request.host, request.port)
    if refused is None or decision.effect is Effect.DENY:
        return decision
    return Decision(Effect.DENY, "address", refused)


def _refusal(exceptions: Sequence[OperatorException], host: Host, port: int) -> str | None:
    return None if isinstance(host, str) else refusal(exceptions, host, port, host)
