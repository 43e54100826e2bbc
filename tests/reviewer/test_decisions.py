import pytest

from reviewer.decisions import Follows, Mode, Permissions, decide, host_to_ask, tool_to_ask
from reviewer.rules.classify import Action, classify
from reviewer.rules.prefixes import load_rules
from workroom.errors import NotSupported

RULES = load_rules(
    "rules: [{id: no, prefix: [halt-all], decision: forbid, justification: never here}]"
)
NOTHING = Permissions()
ROOT = Permissions(root=True)
DANGEROUS = Permissions(dangerous=True)
ALL = Permissions(root=True, dangerous=True)


@pytest.mark.parametrize(
    ("script", "as_root", "permissions", "expected"),
    [
        ("ls", False, NOTHING, Follows.RUN),
        ("python3 main.py", False, NOTHING, Follows.RUN),
        ("npm install", False, NOTHING, Follows.RUN),
        ("rm -rf /", False, NOTHING, Follows.FAIL),
        ("rm -rf /", False, ROOT, Follows.FAIL),
        ("rm -rf /", False, DANGEROUS, Follows.RUN),
        ("echo x > /etc/y", False, NOTHING, Follows.FAIL),
        ("echo x > /etc/y", False, DANGEROUS, Follows.RUN),
        ("ls", True, NOTHING, Follows.FAIL),
        ("ls", True, DANGEROUS, Follows.FAIL),
        ("ls", True, ROOT, Follows.RUN),
        ("sudo ls", False, DANGEROUS, Follows.FAIL),
        ("rm -rf /", True, ROOT, Follows.FAIL),
        ("rm -rf /", True, ALL, Follows.RUN),
        ("halt-all", False, ALL, Follows.FAIL),
        ("halt-all", True, ALL, Follows.FAIL),
    ],
)
def test_without_review_the_permissions_decide(script, as_root, permissions, expected):
    verdict = classify(Action(script=script, as_root=as_root), RULES)
    decision = decide(Mode.NONE, verdict, permissions)
    assert decision.outcome is expected
    assert verdict.reason in decision.reason


def test_a_host_to_ask_for_is_closed_whatever_is_permitted():
    decision = decide(Mode.NONE, host_to_ask("example.com"), ALL)
    assert decision.outcome is Follows.FAIL
    assert "example.com" in decision.reason


def test_a_tool_to_ask_for_needs_permission():
    assert decide(Mode.NONE, tool_to_ask("drop_table"), ROOT).outcome is Follows.FAIL
    assert decide(Mode.NONE, tool_to_ask("drop_table"), DANGEROUS).outcome is Follows.RUN


def test_automatic_review_is_refused_by_name():
    verdict = classify(Action(script="ls"), RULES)
    with pytest.raises(NotSupported) as caught:
        decide(Mode.AUTO_REVIEW, verdict, ALL)
    assert caught.value.field == "mode"
    assert "auto_review" in caught.value.message
