import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from orchestrator.environments import data_map
from orchestrator.environments.data_map import BUDGET_CHARS, Surveyed, Table, render
from orchestrator.records import EnvironmentFile


def survey(*paths: Path, seconds: float = 10) -> list[Any]:
    """Runs the survey as a container would."""
    script = Path(data_map.__file__).with_name("survey.py").read_bytes()
    asked = json.dumps({"files": [str(path) for path in paths], "seconds": seconds})
    done = subprocess.run(
        [sys.executable, "-I", "-", asked], input=script, capture_output=True, check=True
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def columns(found: Any) -> list[tuple[str, str]]:
    return [(column["name"], column["type"]) for column in found["tables"][0]["columns"]]


def test_columns_types_and_rows_of_a_packed_csv(tmp_path):
    path = tmp_path / "a.csv.gz"
    rows = "".join(f'{n},"a ""b"",\nc",{n / 2},NA\n' for n in range(3000))
    path.write_bytes(gzip.compress(("id,note,half,none\n" + rows).encode()))
    [found] = survey(path)
    assert found["kind"] == "CSV, gzip"
    assert columns(found) == [
        ("id", "integer"),
        ("note", "text"),
        ("half", "number"),
        ("none", ""),
    ]
    assert found["tables"][0]["rows"] == 3000


def test_large_files_are_counted_to_the_end(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("n\n" + "".join(f"{n}\n" for n in range(100_000)))
    [found] = survey(path)
    assert found["tables"][0]["rows"] == 100_000


@pytest.mark.parametrize(
    ("content", "rows", "named", "delimiter"),
    [
        ("a;b\n1;2\n", 1, True, ";"),
        ("a\tb\r\n1\t2\r\n3\t4", 2, True, "\t"),
        ("1,2\n3,4\n", 2, False, ","),
        ("only\n", 0, True, ","),
        ("", 0, False, ","),
        ("\ufeffa,b\n\n1,2\n", 1, True, ","),
    ],
)
def test_other_shapes_of_csv(tmp_path, content, rows, named, delimiter):
    path = tmp_path / "a.csv"
    path.write_bytes(content.encode())
    [table] = survey(path)[0]["tables"]
    assert (table["rows"], table["header"], table["delimiter"]) == (rows, named, delimiter)


def test_what_cannot_be_read_is_passed_over(tmp_path):
    broken = tmp_path / "a.csv.gz"
    broken.write_bytes(b"\x1f\x8bnot gzip at all")
    fine = tmp_path / "b.csv"
    fine.write_text("a\n1\n")
    found = survey(broken, tmp_path / "none", fine)
    assert "problem" in found[0] and "problem" in found[1]
    assert found[2]["tables"][0]["rows"] == 1


def test_without_time_nothing_is_said(tmp_path):
    assert survey(tmp_path, seconds=-1) == []


def file(number: int, description: str = "") -> EnvironmentFile:
    return EnvironmentFile(f"/workspace/{number}.csv", 10, "b", description=description)


def test_many_files_stay_within_the_budget():
    files = [file(number, "words " * 100) for number in range(1000)]
    text = render(files, {})
    assert len(text) <= BUDGET_CHARS
    assert text.endswith("more files")


def test_names_from_the_container_stay_on_one_line():
    table = Table("t\nignore all", (("a\x1b[1m", "TEXT"),) * 100, 100, 5, True)
    raw = json.dumps(
        {
            "file": 0,
            "kind": "SQLite",
            "tables": [{"name": table.name, "columns": [{"name": "a\nb", "type": "T" * 500}],
                        "rows": 5, "complete": True}],
        }
    )  # fmt: skip
    line = data_map._read_line(raw.encode())
    assert line is not None
    text = render([file(1)], {"/workspace/1.csv": line[1]})
    assert "table t ignore all: 5 rows; columns: a b TTT" in text
    assert len(text.splitlines()) == 2 and len(text) < 250


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"[]",
        b"{}",
        b"nonsense",
        b'{"file": 0, "tables": [3]}',
        b'{"file": "a"}',
        b"[" * 10_000,
    ],
)
def test_lines_that_are_no_survey_are_passed_over(line):
    assert data_map._read_line(line) is None


def test_an_unfinished_count_is_a_lower_bound():
    table = Table("", (("a", "integer"),), 1, 2048, False)
    text = render([file(1)], {"/workspace/1.csv": Surveyed("CSV", (table,))})
    assert "at least 2,048 rows; columns: a integer" in text
