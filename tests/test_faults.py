"""What `docs/faults.md` names must exist."""

import re
from pathlib import Path

TESTS = Path(__file__).parent
TABLE = TESTS.parent / "docs" / "faults.md"
FOLDERS = {
    "agent": TESTS / "container_runtime" / "agent",
    "runtime": TESTS / "container_runtime",
    "contract": TESTS / "contract",
    "docker": TESTS / "docker",
    "rpc": TESTS / "workroom" / "rpc",
}


def test_every_test_that_the_table_names_is_there():
    named = re.findall(r"`([a-z]+)/([a-z_]+):([a-z0-9_]+)`", TABLE.read_text())
    assert len(named) > 30
    missing = [
        f"{folder}/{module}:{name}"
        for folder, module, name in named
        if f"def test_{name}(" not in (FOLDERS[folder] / f"test_{module}.py").read_text()
    ]
    assert not missing


def test_every_row_has_a_test_or_says_that_it_has_none():
    rows = [line for line in TABLE.read_text().splitlines() if line.startswith("| ")]
    for row in rows[2:]:
        assert re.search(r"`[a-z]+/[a-z_]+:[a-z0-9_]+`|no test yet", row), row
