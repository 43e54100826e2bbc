"""Owns what a policy is and what it decides. Pure: knows no container, no socket and no wire."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from egress_proxy.names import Host, shown
from egress_proxy.patterns import Pattern

DEFAULT_PORTS = (80, 443)
"""Where a pattern or rule that names no port reaches."""


class Access(StrEnum):
    """How much a container may reach."""

    DISABLED = "disabled"
    RESTRICTED = "restricted"
    ENABLED = "enabled"


class Effect(StrEnum):
    """What a rule or a decision says."""

    ALLOW = "allow"
    ASK = "ask"
    """Somebody must be asked. Until there is somebody, it is closed."""
    DENY = "deny"


_STRICTNESS = (Effect.ALLOW, Effect.ASK, Effect.DENY)


@dataclass(frozen=True)
class PathPattern:
    """Paths of HTTP requests: one exactly, or all that begin with a prefix."""

    path: str
    prefix: bool = False

    def matches(self, path: str) -> bool:
        """Whether it means `path`, which is canonical. A prefix ends at a `/` or a path's end."""
        if not self.prefix:
            return path == self.path
        return path.startswith(self.path) or f"{path}/" == self.path

    def __str__(self) -> str:
        return f"{self.path}*" if self.prefix else self.path


@dataclass(frozen=True)
class Rule:
    """One line of a policy. An empty tuple of methods or paths means every one of them."""

    effect: Effect
    hosts: tuple[Pattern, ...]
    ports: tuple[int, ...] = ()
    """Empty means `DEFAULT_PORTS`; of a rule that denies, every port."""
    methods: tuple[str, ...] = ()
    paths: tuple[PathPattern, ...] = ()

    @property
    def looks_inside(self) -> bool:
        """Whether only the content of a request can say that it is meant."""
        return bool(self.methods or self.paths)


@dataclass(frozen=True)
class Policy:
    """What a container may reach. `parse_policy` makes only those that make sense."""

    access: Access = Access.DISABLED
    allowed_domains: tuple[Pattern, ...] = ()
    blocked_domains: tuple[Pattern, ...] = ()
    rules: tuple[Rule, ...] = ()

    @property
    def open_by_default(self) -> bool:
        """Whether a public host that nothing names may be reached."""
        if self.access is Access.RESTRICTED:
            return bool(self.blocked_domains)
        return self.access is Access.ENABLED


@dataclass(frozen=True)
class Request:
    """What a program wants. `method` and `path` are those of a request that can be looked into."""

    host: Host
    port: int
    method: str | None = None
    path: str | None = None
    """Canonical, without the query; `None` where it cannot be seen or has no canonical form."""

    def __str__(self) -> str:
        return f"{shown(self.host)}:{self.port}"


@dataclass(frozen=True)
class Decision:
    """What a policy says. `rule` names the line of the policy; `reason` is a fixed word."""

    effect: Effect
    rule: str
    reason: str

    @property
    def allowed(self) -> bool:
        """Whether it may go out now."""
        return self.effect is Effect.ALLOW


@dataclass(frozen=True)
class _Match:
    effect: Effect
    rule: str
    inside: bool = False


METADATA_NAMES = frozenset({"metadata", "metadata.google.internal", "instance-data"})
RESOLVERS = frozenset(
    "dns.google dns.google.com cloudflare-dns.com one.one.one.one mozilla.cloudflare-dns.com "
    "chrome.cloudflare-dns.com security.cloudflare-dns.com family.cloudflare-dns.com "
    "dns.quad9.net dns9.quad9.net dns10.quad9.net dns11.quad9.net doh.opendns.com dns.opendns.com "
    "dns.nextdns.io dns.adguard.com dns.adguard-dns.com doh.cleanbrowsing.org dns.mullvad.net "
    "doh.mullvad.net dns.alidns.com doh.pub dns.sb doh.libredns.gr dns0.eu".split()
)
"""Resolvers over HTTPS, through which anything could be looked up: only where they are named."""
DNS_OVER_TLS = 853


def decide(policies: Sequence[Policy], request: Request) -> Decision:
    """What all of the policies together say: the most restrictive of their decisions.

    The first is the container's own, the others are bounds that it cannot widen.
    """
    decisions = [
        Decision(each.effect, f"{'bound.' if number else ''}{each.rule}", each.reason)
        for number, each in enumerate(_decide(policy, request) for policy in policies)
    ]
    if not decisions:
        return Decision(Effect.DENY, "none", "no_policy")
    return max(decisions, key=lambda each: _STRICTNESS.index(each.effect))


def may_resolve(policies: Sequence[Policy], host: Host) -> Decision:
    """Whether a name may be known to exist: whether some port of it might be reached."""
    best = Decision(Effect.DENY, "default", "not_allowed")
    for port in sorted({port for policy in policies for port in _ports(policy, host)}):
        found = decide(policies, Request(host, port))
        if found.reason == "needs_inspection":
            found = Decision(Effect.ALLOW, found.rule, "allowed")
        if found.allowed:
            return found
        if found.effect is Effect.ASK or best.reason == "not_allowed":
            best = found
    return best


def _ports(policy: Policy, host: Host) -> Iterator[int]:
    yield from DEFAULT_PORTS
    for pattern in policy.allowed_domains:
        if pattern.matches(host) and pattern.port is not None:
            yield pattern.port
    for rule in policy.rules:
        for pattern in rule.hosts:
            if rule.effect is not Effect.DENY and pattern.matches(host):
                yield from rule.ports
                if pattern.port is not None:
                    yield pattern.port
    if policy.open_by_default:
        yield 22


def _decide(policy: Policy, request: Request) -> Decision:
    if policy.access is Access.DISABLED:
        return Decision(Effect.DENY, "access", "access_disabled")
    if isinstance(request.host, str) and _never(request.host):
        return Decision(Effect.DENY, "built-in", "name_never_allowed")
    matches = list(_matches(policy, request))
    seen = [match for match in matches if not match.inside]
    if seen:
        strictest = max(seen, key=lambda each: _STRICTNESS.index(each.effect))
        return Decision(strictest.effect, strictest.rule, _REASONS[strictest.effect])
    if matches:
        return Decision(Effect.DENY, matches[0].rule, "needs_inspection")
    if not policy.open_by_default:
        return Decision(Effect.DENY, "default", "not_allowed")
    if request.port == DNS_OVER_TLS or request.host in RESOLVERS:
        return Decision(Effect.DENY, "built-in", "resolver_not_named")
    return Decision(Effect.ALLOW, "default", "allowed")


_REASONS = {
    Effect.ALLOW: "allowed",
    Effect.ASK: "approval_needed",
    Effect.DENY: "denied_by_rule",
}


def _never(name: str) -> bool:
    return name in METADATA_NAMES or name == "localhost" or name.endswith(".localhost")


def _matches(policy: Policy, request: Request) -> Iterator[_Match]:
    for number, pattern in enumerate(policy.allowed_domains):
        if pattern.matches(request.host) and _port_matches(pattern, (), Effect.ALLOW, request):
            yield _Match(Effect.ALLOW, f"allowed_domains[{number}] {pattern}")
    for number, pattern in enumerate(policy.blocked_domains):
        if pattern.matches(request.host) and _port_matches(pattern, (), Effect.DENY, request):
            yield _Match(Effect.DENY, f"blocked_domains[{number}] {pattern}")
    for number, rule in enumerate(policy.rules):
        for pattern in rule.hosts:
            if not pattern.matches(request.host):
                continue
            if not _port_matches(pattern, rule.ports, rule.effect, request):
                continue
            meant = _means(rule, request)
            # What cannot be seen may be what a rule forbids, and is not what it allows.
            if meant or (meant is None and rule.effect is not Effect.ALLOW):
                yield _Match(rule.effect, f"rules[{number}] {pattern}")
            elif meant is None:
                yield _Match(rule.effect, f"rules[{number}] {pattern}", inside=True)
            break


def _port_matches(
    pattern: Pattern, ports: tuple[int, ...], effect: Effect, request: Request
) -> bool:
    if pattern.port is not None:
        return request.port == pattern.port
    if effect is Effect.DENY and not ports:
        return True
    return request.port in (ports or DEFAULT_PORTS)


def _means(rule: Rule, request: Request) -> bool | None:
    """Whether the rule's methods and paths mean the request; `None` where that cannot be seen."""
    answers: list[bool | None] = []
    if rule.methods:
        answers.append(None if request.method is None else request.method in rule.methods)
    if rule.paths:
        path = request.path
        answers.append(None if path is None else any(each.matches(path) for each in rule.paths))
    if False in answers:
        return False
    return None if None in answers else True
