"""Owns what the one who calls may do."""

from orchestrator.agents import Caller
from workroom.rpc.auth import OWNER, current_principal


def caller(*, anyone_may_name_endpoints: bool) -> Caller:
    """Whoever makes the current call."""
    owner = current_principal() == OWNER
    return Caller(may_name_endpoints=owner or anyone_may_name_endpoints)
