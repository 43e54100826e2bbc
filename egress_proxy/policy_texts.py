"""Owns how a policy is read from texts and written as texts; every refusal names its field."""

from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import quote, unquote

from egress_proxy.names import BadHost
from egress_proxy.patterns import Pattern, parse_pattern
from egress_proxy.policy import Access, Effect, PathPattern, Policy, Rule
from workroom.errors import InvalidField

MAX_DOMAINS = 1000
MAX_RULES = 500
MAX_PER_RULE = 100
MAX_PATH = 2048
METHODS = frozenset(
    "GET HEAD POST PUT PATCH DELETE OPTIONS PROPFIND PROPPATCH MKCOL COPY MOVE LOCK UNLOCK "
    "REPORT SEARCH MERGE".split()
)


@dataclass(frozen=True)
class RuleTexts:
    """A rule as a caller writes it."""

    effect: str = ""
    hosts: tuple[str, ...] = ()
    ports: tuple[int, ...] = ()
    methods: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()


@dataclass(frozen=True)
class PolicyTexts:
    """A policy as a caller writes it."""

    access: str = Access.DISABLED.value
    allowed_domains: tuple[str, ...] = ()
    blocked_domains: tuple[str, ...] = ()
    rules: tuple[RuleTexts, ...] = ()


def parse_policy(texts: PolicyTexts, field: str = "policy") -> Policy:
    """The policy that `texts` means. Raises InvalidField with the field under `field`."""
    access = Access(texts.access)
    _check_lists(access, texts, field)
    return Policy(
        access,
        _patterns(texts.allowed_domains, f"{field}.allowed_domains", MAX_DOMAINS),
        _patterns(texts.blocked_domains, f"{field}.blocked_domains", MAX_DOMAINS, wide=True),
        _rules(texts.rules, f"{field}.rules"),
    )


def policy_texts(policy: Policy) -> PolicyTexts:
    """A policy in the texts that `parse_policy` reads back as the same policy."""
    return PolicyTexts(
        policy.access.value,
        tuple(map(str, policy.allowed_domains)),
        tuple(map(str, policy.blocked_domains)),
        tuple(
            RuleTexts(
                rule.effect.value,
                tuple(map(str, rule.hosts)),
                rule.ports,
                rule.methods,
                tuple(map(str, rule.paths)),
            )
            for rule in policy.rules
        ),
    )


def canonical_path(raw: str) -> str | None:
    """A path in the one form that rules are matched on; `None` where it has none.

    Dot segments, empty segments, an encoded slash or backslash, parameters and controls have no
    form that every server reads the same. The query is not part of it.
    """
    path = raw.partition("?")[0]
    if not path.startswith("/") or "#" in path or "\\" in path or ";" in path:
        return None
    try:
        decoded = unquote(path, errors="strict")
    except UnicodeDecodeError:
        return None
    if "%2f" in path.lower() or "%" in decoded or "\\" in decoded or ";" in decoded:
        return None
    if any(ord(letter) < 0x20 or ord(letter) == 0x7F for letter in decoded):
        return None
    segments = decoded.split("/")[1:]
    if any(segment in (".", "..") for segment in segments) or "" in segments[:-1]:
        return None
    return quote(decoded, safe="/~!$&'()*+,=:@-._")


def _check_lists(access: Access, texts: PolicyTexts, field: str) -> None:
    allowed, blocked = texts.allowed_domains, texts.blocked_domains
    if access is not Access.RESTRICTED:
        for name, domains in (("allowed_domains", allowed), ("blocked_domains", blocked)):
            if domains:
                raise InvalidField(f"{field}.{name}", "is allowed with restricted access only")
    if access is Access.DISABLED and texts.rules:
        raise InvalidField(f"{field}.rules", "are allowed with restricted or enabled access only")
    if allowed and blocked:
        raise InvalidField(
            f"{field}.blocked_domains",
            "cannot stand beside allowed_domains: what is not allowed is blocked",
        )


def _patterns(
    texts: Sequence[str], field: str, limit: int, *, wide: bool = False, has_ports: bool = False
) -> tuple[Pattern, ...]:
    if len(texts) > limit:
        raise InvalidField(field, f"has {len(texts)} entries; at most {limit} are allowed")
    found: list[Pattern] = []
    for number, text in enumerate(texts):
        place = f"{field}[{number}]"
        try:
            pattern = parse_pattern(text, wide=wide)
        except BadHost as error:
            raise InvalidField(place, f"{text[:300]!r} {error}") from None
        if has_ports and pattern.port is not None:
            raise InvalidField(place, f"{text!r} has a port, and the rule names ports as well")
        if pattern in found:
            raise InvalidField(place, f"{text!r} is there twice")
        found.append(pattern)
    return tuple(found)


def _rules(texts: Sequence[RuleTexts], field: str) -> tuple[Rule, ...]:
    if len(texts) > MAX_RULES:
        raise InvalidField(field, f"has {len(texts)} entries; at most {MAX_RULES} are allowed")
    return tuple(_rule(each, f"{field}[{number}]") for number, each in enumerate(texts))


def _rule(texts: RuleTexts, field: str) -> Rule:
    try:
        effect = Effect(texts.effect)
    except ValueError:
        raise InvalidField(f"{field}.effect", "must be allow, ask or deny") from None
    if not texts.hosts:
        raise InvalidField(f"{field}.hosts", "must not be empty")
    for name in ("ports", "methods", "paths"):
        if len(getattr(texts, name)) > MAX_PER_RULE:
            raise InvalidField(f"{field}.{name}", f"has more than {MAX_PER_RULE} entries")
    for number, port in enumerate(texts.ports):
        if not 1 <= port <= 65535:
            raise InvalidField(f"{field}.ports[{number}]", f"{port} is not between 1 and 65535")
    for number, method in enumerate(texts.methods):
        if method not in METHODS:
            raise InvalidField(
                f"{field}.methods[{number}]",
                f"{method[:40]!r} is not known; allowed: {', '.join(sorted(METHODS))}",
            )
    hosts = _patterns(
        texts.hosts,
        f"{field}.hosts",
        MAX_PER_RULE,
        wide=effect is Effect.DENY,
        has_ports=bool(texts.ports),
    )
    paths = tuple(_path(text, f"{field}.paths[{n}]") for n, text in enumerate(texts.paths))
    return Rule(effect, hosts, texts.ports, texts.methods, paths)


def _path(text: str, field: str) -> PathPattern:
    prefix = text.endswith("/*")
    path = text[:-1] if prefix else text
    if len(text) > MAX_PATH:
        raise InvalidField(field, f"is longer than {MAX_PATH} characters")
    if "*" in path:
        raise InvalidField(field, "has a star elsewhere than as `/*` at its end")
    if "?" in path:
        raise InvalidField(field, "has a query; only the path is matched")
    if canonical_path(path) != path:
        raise InvalidField(
            field, "is not a canonical path: it begins with `/`, without `..`, `//`, `;` or `%2F`"
        )
    return PathPattern(path, prefix)
