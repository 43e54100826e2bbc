"""Measures how many actions per second the rules stage decides on one core.

Run: python -m benchmarks.review_rules
"""

import time
from pathlib import Path

from benchmarks.results import Result
from reviewer.rules.classify import Action, classify
from reviewer.rules.prefixes import load_rules

SECONDS = 2.0

SCRIPTS = (
    "ls -la",
    "cd /workspace && git status --short && git diff --stat",
    "python3 -m pytest tests -q 2>&1 | tail -40",
    "grep -rn 'def main' --include='*.py' . | head -20",
    "sed -n 1,200p src/app.py",
    "cat > notes.md <<'EOF'\n# Notes\n\nSome text that is kept.\nEOF",
    'for f in data/*.csv; do wc -l "$f"; done',
    "curl -fsSL https://example.com/data.json -o data.json && jq '.items | length' data.json",
    "pip install pandas",
    "rm -rf build dist && mkdir -p build && cp -r src build/",
    'if [ -f package.json ]; then npm test; else echo "no tests" >&2; fi',
    "sudo rm -rf /var/lib/thing",
    'X=$(mktemp -d); tar -xzf a.tgz -C "$X" && find "$X" -name \'*.txt\' | xargs grep -l foo',
)


def decisions_per_second(seconds: float = SECONDS) -> float:
    """Decides ordinary scripts over and over, with the rules that ship.

    The time counted is the processor's, so that other work on the machine does not count.
    """
    rules = load_rules(Path("reviewer/rules/default.yaml").read_text(encoding="utf-8"))
    actions = [Action(script=script) for script in SCRIPTS]
    decided = 0
    start = time.process_time()
    while (spent := time.process_time() - start) < seconds:
        for action in actions:
            classify(action, rules)
        decided += len(actions)
    return decided / spent


def run() -> list[Result]:
    """Measures the rules."""
    return [Result("review_rules_per_second", decisions_per_second(), "1/s")]


if __name__ == "__main__":
    print(f"review_rules_per_second {decisions_per_second():.0f}")
