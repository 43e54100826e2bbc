"""What `docs/attacks.md` names must exist."""

import re
from pathlib import Path

HERE = Path(__file__).parent
TABLE = HERE.parents[1] / "docs" / "attacks.md"


def test_every_test_that_the_table_names_is_there():
    named = re.findall(r"`([a-z_]+):([a-z0-9_]+)`", TABLE.read_text())
    assert len(named) > 50
    missing = [
        f"{module}:{name}"
        for module, name in named
        if f"def test_{name}(" not in (HERE / f"test_{module}.py").read_text()
    ]
    assert not missing


def test_every_row_has_a_test_or_a_reason():
    rows = [line for line in TABLE.read_text().splitlines() if line.startswith("| ")]
    rows = [row for row in rows if not row.startswith(("| attack", "| ---"))]
    assert len(rows) >= 52
    for row in rows:
        assert re.search(r"`[a-z_]+:[a-z0-9_]+`|[Ww]ith secret injection", row), row
