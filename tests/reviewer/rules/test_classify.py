from pathlib import Path

import pytest

from reviewer.rules.classify import Action, Outcome, Verdict, classify
from reviewer.rules.prefixes import load_rules
from tests.reviewer.rules import cases

DEFAULT = load_rules(Path("reviewer/rules/default.yaml").read_text())

EXPECTED = [
    *((script, Outcome.SAFE) for script in cases.SAFE),
    *((script, Outcome.UNKNOWN) for script in cases.UNKNOWN),
    *((script, Outcome.UNKNOWN) for script in cases.PACKAGES),
    *((script, Outcome.DANGEROUS) for script in cases.DANGEROUS),
    *((script, Outcome.FORBIDDEN) for script in cases.FORBIDDEN),
]


def judged(script: str, **more) -> Verdict:
    return classify(Action(script=script, **more), DEFAULT)


@pytest.mark.parametrize(("script", "outcome"), EXPECTED)
def test_a_script_gets_its_verdict(script, outcome):
    verdict = judged(script)
    assert verdict.outcome == outcome, verdict
    assert verdict.reason
