import pytest

from egress_proxy.names import host_from_text
from egress_proxy.policy import Access, Effect, Policy, Request, decide, may_resolve
from egress_proxy.policy_texts import (
    PolicyTexts,
    RuleTexts,
    canonical_path,
    parse_policy,
    policy_texts,
)
from workroom.errors import InvalidField


def restricted(*allowed, blocked=(), rules=()):
    return parse_policy(PolicyTexts("restricted", tuple(allowed), tuple(blocked), tuple(rules)))


def asked(policy, host, port=443, method=None, path=None):
    policies = policy if isinstance(policy, tuple) else (policy,)
    return decide(policies, Request(host_from_text(host), port, method, path))


def test_nothing_is_allowed_without_a_policy_or_when_disabled():
    assert not decide((), Request(host_from_text("a.example"), 443)).allowed
    assert asked(Policy(), "a.example").reason == "access_disabled"


def test_a_restricted_policy_without_lists_allows_nothing():
    assert asked(restricted(), "a.example").reason == "not_allowed"


@pytest.mark.parametrize(
    ("pattern", "host", "allowed"),
    [
        ("example.com", "example.com", True),
        ("EXAMPLE.com.", "example.com", True),
        ("example.com", "www.example.com", False),
        ("example.com", "example.com.evil.test", False),
        ("*.example.com", "a.example.com", True),
        ("*.example.com", "a.b.example.com", True),
        ("*.example.com", "example.com", False),
        ("*.example.com", "evilexample.com", False),
        ("**.example.com", "example.com", True),
        ("**.example.com", "a.b.example.com", True),
        ("**.example.com", "evilexample.com", False),
        ("1.2.3.4", "1.2.3.4", True),
        ("[2a00::1]", "[2a00::1]", True),
        ("2a00::1", "[2a00::1]", True),
    ],
)
def test_patterns_match_by_whole_labels(pattern, host, allowed):
    assert asked(restricted(pattern), host).allowed is allowed


def test_a_domain_means_the_web_ports_unless_it_names_one():
    policy = restricted("a.example", "b.example:5432")
    assert asked(policy, "a.example", 80).allowed
    assert not asked(policy, "a.example", 22).allowed
    assert not asked(policy, "a.example", 8443).allowed
    assert asked(policy, "b.example", 5432).allowed
    assert not asked(policy, "b.example", 443).allowed


def test_blocked_domains_leave_the_rest_open():
    policy = restricted(blocked=["**.evil.example", "*.zip"])
    assert asked(policy, "good.example", 8443).allowed
    assert asked(policy, "a.evil.example", 22).rule == "blocked_domains[0] **.evil.example"
    assert not asked(policy, "a.zip").allowed


def test_enabled_leaves_out_resolvers_metadata_and_this_node():
    policy = parse_policy(PolicyTexts("enabled"))
    assert asked(policy, "a.example", 25).allowed
    for host, port in (
        ("dns.google", 443),
        ("a.example", 853),
        ("metadata.google.internal", 80),
        ("localhost", 80),
        ("a.localhost", 80),
    ):
        assert not asked(policy, host, port).allowed
    assert asked(restricted("dns.google"), "dns.google").allowed


def test_the_most_restrictive_rule_wins_and_is_named():
    rules = (
        RuleTexts("allow", ("a.example",)),
        RuleTexts("ask", ("a.example",), methods=("POST",)),
        RuleTexts("deny", ("a.example",), methods=("POST",), paths=("/admin/*",)),
    )
    policy = restricted(rules=rules)
    assert asked(policy, "a.example", 80, "GET", "/admin/x").allowed
    assert asked(policy, "a.example", 80, "POST", "/x").effect is Effect.ASK
    denied = asked(policy, "a.example", 80, "POST", "/admin/x")
    assert (denied.effect, denied.rule) == (Effect.DENY, "rules[2] a.example")
    assert asked(policy, "a.example", 80, "POST", "/admin").effect is Effect.DENY


def test_what_cannot_be_seen_is_not_allowed_by_a_rule_that_must_see_it():
    policy = restricted(rules=[RuleTexts("allow", ("a.example",), methods=("GET",))])
    assert asked(policy, "a.example").reason == "needs_inspection"
    assert asked(policy, "a.example", 80, "GET", "/").allowed
    hidden = restricted("a.example", rules=[RuleTexts("deny", ("a.example",), paths=("/x",))])
    assert asked(hidden, "a.example").effect is Effect.DENY
    assert asked(hidden, "a.example", 80, "GET", "/y").allowed
    assert asked(hidden, "a.example", 80, "GET", None).effect is Effect.DENY


def test_a_session_narrows_its_template_and_never_widens_it():
    template, session = restricted("**.example.com"), restricted("a.example.com", "evil.example")
    assert asked((session, template), "a.example.com").allowed
    assert not asked((session, template), "b.example.com").allowed
    denied = asked((session, template), "evil.example")
    assert (denied.allowed, denied.rule) == (False, "bound.default")


def test_a_name_resolves_when_some_port_of_it_may_be_reached():
    policy = restricted(
        "a.example:5432", rules=[RuleTexts("allow", ("b.example",), methods=("GET",))]
    )
    assert may_resolve((policy,), host_from_text("a.example")).allowed
    assert may_resolve((policy,), host_from_text("b.example")).allowed
    assert not may_resolve((policy,), host_from_text("c.example")).allowed
    blocked = restricted(blocked=["c.example"])
    assert not may_resolve((blocked,), host_from_text("c.example")).allowed


@pytest.mark.parametrize(
    ("policy", "field", "words"),
    [
        (PolicyTexts("restricted", ("https://a.example",)), "allowed_domains[0]", "URL"),
        (PolicyTexts("restricted", ("a.example/x",)), "allowed_domains[0]", "path"),
        (PolicyTexts("restricted", ("u@a.example",)), "allowed_domains[0]", "user"),
        (PolicyTexts("restricted", ("ok.example", "a:1:2")), "allowed_domains[1]", "one port"),
        (PolicyTexts("restricted", ("*.com",)), "allowed_domains[0]", "public suffix"),
        (PolicyTexts("restricted", ("**.co.uk",)), "allowed_domains[0]", "public suffix"),
        (PolicyTexts("restricted", ("*",)), "allowed_domains[0]", "enabled"),
        (PolicyTexts("restricted", ("a.*.example",)), "allowed_domains[0]", "star"),
        (PolicyTexts("restricted", ("*.1.2.3.4",)), "allowed_domains[0]", "address"),
        (PolicyTexts("restricted", ("[fe80::1%eth0]",)), "allowed_domains[0]", "scope"),
        (PolicyTexts("restricted", ("fe80::1%eth0",)), "allowed_domains[0]", "scope"),
        (
            PolicyTexts("restricted", ("b\u00fccher.example",)),
            "allowed_domains[0]",
            "xn--bcher-kva",
        ),
        (PolicyTexts("restricted", ("",)), "allowed_domains[0]", "empty"),
        (PolicyTexts("restricted", ("a.example", "A.example.")), "allowed_domains[1]", "twice"),
        (PolicyTexts("restricted", ("a",), ("b",)), "blocked_domains", "beside"),
        (PolicyTexts("enabled", ("a.example",)), "allowed_domains", "restricted"),
        (PolicyTexts("enabled", (), ("a.example",)), "blocked_domains", "restricted"),
        (PolicyTexts("disabled", ("a.example",)), "allowed_domains", "restricted"),
        (PolicyTexts("disabled", rules=(RuleTexts("deny", ("a",)),)), "rules", "restricted"),
    ],
)
def test_a_bad_policy_is_refused_with_the_field_and_the_reason(policy, field, words):
    with pytest.raises(InvalidField, match=words) as caught:
        parse_policy(policy)
    assert caught.value.field == f"policy.{field}"


@pytest.mark.parametrize(
    ("rule", "field"),
    [
        (RuleTexts("", ("a",)), "effect"),
        (RuleTexts("allow"), "hosts"),
        (RuleTexts("allow", ("a:80",), ports=(80,)), "hosts[0]"),
        (RuleTexts("allow", ("a",), ports=(80, 0)), "ports[1]"),
        (RuleTexts("allow", ("a",), methods=("get",)), "methods[0]"),
        (RuleTexts("allow", ("a",), methods=("TRACE",)), "methods[0]"),
        (RuleTexts("allow", ("a",), paths=("x",)), "paths[0]"),
        (RuleTexts("allow", ("a",), paths=("/a/../b",)), "paths[0]"),
        (RuleTexts("allow", ("a",), paths=("/a*b",)), "paths[0]"),
        (RuleTexts("allow", ("a",), paths=("/a?b",)), "paths[0]"),
    ],
)
def test_a_bad_rule_is_refused_with_the_field(rule, field):
    with pytest.raises(InvalidField) as caught:
        restricted(rules=[RuleTexts("deny", ("ok",)), rule])
    assert caught.value.field == f"policy.rules[1].{field}"


def test_a_policy_is_read_back_as_it_was_written():
    rule = RuleTexts("ask", ("*.a.example", "[2a00::1]"), (22,), ("GET",), ("/a", "/b/*"))
    for policy in (
        restricted("**.a.example", "b.example:1", "[2a00::1]:3", "1.2.3.4:5", rules=[rule]),
        restricted(blocked=["*.zip"]),
        Policy(Access.ENABLED),
        Policy(),
    ):
        assert parse_policy(policy_texts(policy)) == policy


@pytest.mark.parametrize(
    ("raw", "path"),
    [
        ("/a/b?c=/../d", "/a/b"),
        ("/%61/b", "/a/b"),
        ("/a%20b", "/a%20b"),
        ("/", "/"),
        ("/a/", "/a/"),
        ("/a/../b", None),
        ("/a/%2e%2e/b", None),
        ("/./a", None),
        ("//a", None),
        ("/a//b", None),
        ("/a%2fb", None),
        ("/a%5cb", None),
        ("/a\\b", None),
        ("/a;b", None),
        ("/a%3bb", None),
        ("/a%00", None),
        ("/a%252e", None),
        ("/%ff", None),
        ("/a#b", None),
        ("a", None),
    ],
)
def test_a_path_has_one_form_or_none(raw, path):
    assert canonical_path(raw) == path
