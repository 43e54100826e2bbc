import pytest

from reviewer.rules.prefixes import Choice, InvalidRules, load_rules

ONE = """\
rules:
  - id: push
    prefix: [git, [push, send-pack]]
    decision: forbid
    justification: publishing is done elsewhere
    match:
      - git push origin main
      - sudo git send-pack x
    not_match:
      - git pull
"""


def test_a_rule_is_read():
    (rule,) = load_rules(ONE).rules
    assert (rule.id, rule.choice) == ("push", Choice.FORBID)
    assert rule.justification == "publishing is done elsewhere"


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (("git", "push"), True),
        (("git", "push", "-f"), True),
        (("/usr/bin/git", "send-pack"), True),
        (("/usr/local/bin/git", "push"), True),
        (("git",), False),
        (("git", "-C", "x", "push"), False),
        (("./git", "push"), False),
        (("/tmp/git", "push"), False),
        (("/usr/bin/../../tmp/git", "push"), False),
        ((), False),
    ],
)
def test_words_match_in_their_order(argv, expected):
    assert load_rules(ONE).rules[0].matches(argv) is expected


def test_an_absolute_path_in_a_rule_means_that_path_alone():
    rule = load_rules(ONE.replace("[git,", "[/opt/git,").split("    match")[0]).rules[0]
    assert rule.matches(("/opt/git", "push"))
    assert not rule.matches(("git", "push"))


def test_no_rules_are_rules_too():
    assert load_rules("").rules == ()
    assert load_rules("rules: []").rules == ()


HEAD = "rules:\n  - id: a\n    justification: b\n"


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("rules: [", 1, "expected"),
        ("- a", 1, "mapping"),
        ("{}", 1, "rules is missing"),
        ("rules: 3", 1, "must be a list"),
        ("other: 3", 1, "'other' is not known; allowed: rules"),
        ("rules:\n  - 3", 2, "mapping"),
        (HEAD, 2, "decision is missing"),
        (HEAD + "    decision: allow", 2, "exactly one of prefix and finding"),
        (HEAD + "    decision: maybe\n    prefix: [x]", 4, "allow, review, forbid"),
        (HEAD + "    decision: allow\n    prefix: []", 5, "at least one word"),
        (HEAD + "    decision: allow\n    prefix: [x, []]", 5, "empty list"),
        (HEAD + "    decision: allow\n    prefix: [x, '']", 5, "not empty"),
        (HEAD + "    decision: allow\n    prefix: x", 5, "must be a list"),
        (HEAD + "    decision: allow\n    prefix: [x]\n    id: b", 6, "given twice"),
        (HEAD + "    decision: allow\n    prefix: [x]\n    more: b", 6, "not known"),
        (HEAD + "    decision: allow\n    prefix: [x]\n    match:\n      - y", 7, "does not match"),
        (HEAD + "    decision: allow\n    prefix: [x]\n    match: [A=b x]", 6, "does not match"),
        (HEAD + "    decision: forbid\n    prefix: [x]\n    not_match: [A=b x]", 6, "matches rule"),
        (HEAD + "    decision: forbid\n    finding: nothing", 5, "fork_bomb"),
        (HEAD + "    decision: allow\n    finding: fork_bomb", 5, "can only forbid"),
        (ONE + ONE.removeprefix("rules:\n"), 11, "used twice"),
        ("a: \0", 1, "not YAML"),
    ],
)
def test_what_is_not_understood_is_named_with_its_line(text, line, said):
    with pytest.raises(InvalidRules) as caught:
        load_rules(text)
    assert caught.value.line == line
    assert said in caught.value.problem


def test_rules_have_a_largest_size():
    with pytest.raises(InvalidRules):
        load_rules("#" * 300_000)
