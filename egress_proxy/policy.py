"""Owns what a policy is and which ones are offered; pure, knows no container and no network."""

from dataclasses import dataclass
from enum import StrEnum

from workroom.errors import InvalidField, NotSupported


class Access(StrEnum):
    """How much a container may reach."""

    DISABLED = "disabled"
    RESTRICTED = "restricted"
    ENABLED = "enabled"


@dataclass(frozen=True)
class Policy:
    """What a container may reach."""

    access: Access = Access.DISABLED
    allowed_domains: tuple[str, ...] = ()
    blocked_domains: tuple[str, ...] = ()


def check_offered(policy: Policy) -> None:
    """Raises NotSupported or InvalidField, naming the field, for what cannot be kept.

    Only `disabled` is offered: a container has no network of its own, so that it holds without
    anybody's help. Nothing that names domains is taken in silence.
    """
    if policy.access is not Access.DISABLED:
        raise NotSupported(
            "policy.access",
            f"{policy.access} is not available in this version; allowed: disabled",
            access=policy.access.value,
        )
    for name, domains in (
        ("policy.allowed_domains", policy.allowed_domains),
        ("policy.blocked_domains", policy.blocked_domains),
    ):
        if domains:
            raise InvalidField(name, "is allowed with restricted access only")
