"""The demo against a recomputation of its own, on its data and on two altered copies."""

import csv
import gzip
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
FLIGHTS = "flights_2013_h2.csv.gz"
Row = tuple[str, int, int, int, str, str, int]
"""Destination, third quarter, fourth quarter, change; airline's code, its name, its change."""

SPREADSHEET = "{http://schemas.openxmlformats.org/spreadsheetml/2006/main}"
ANSWER = re.compile(
    r"^\W*(\w{3}) \| ([\d,]+) \| ([\d,]+) \| (-?[\d,]+) \| (\w+) (.+?), (-?[\d,]+)\W*$",
    re.MULTILINE,
)


def recomputed(folder: Path) -> list[Row]:
    """The right answer, from the files alone."""
    with open(folder / "airlines.csv", newline="") as file:
        names = {row["carrier"]: row["name"] for row in csv.DictReader(file)}
    counts: tuple[Counter[tuple[str, str]], ...] = (Counter(), Counter())
    with gzip.open(folder / FLIGHTS, "rt", newline="") as file:
        for row in csv.DictReader(file):
            counts[int(row["month"]) > 9][row["dest"], row["carrier"]] += 1
    third, fourth = counts
    pairs = third.keys() | fourth.keys()
    rows: list[Row] = []
    for dest in {dest for dest, _ in pairs}:
        carriers = [carrier for place, carrier in pairs if place == dest]
        cut, carrier = min((fourth[dest, c] - third[dest, c], c) for c in carriers)
        q3 = sum(third[dest, c] for c in carriers)
        q4 = sum(fourth[dest, c] for c in carriers)
        rows.append((dest, q3, q4, q4 - q3, carrier, names[carrier], cut))
    return sorted(rows, key=lambda row: (row[3], row[0]))[:5]


def told(output: str) -> list[Row]:
    """The rows of the answer's table, as the terminal shows them."""
    answer = output[output.rindex("airline that cut most there") :]
    rows: list[Row] = []
    for dest, q3, q4, change, code, name, cut in ANSWER.findall(answer):
        rows.append((dest, _number(q3), _number(q4), _number(change), code, name, _number(cut)))
    return rows


def written(path: Path) -> list[Row]:
    """The rows of the spreadsheet's first sheet, without its header."""
    with zipfile.ZipFile(path) as book:
        sheet = ElementTree.fromstring(book.read("xl/worksheets/sheet1.xml"))
    rows = []
    for row in sheet.iter(f"{SPREADSHEET}row"):
        cells = []
        for cell in row:
            text = "".join(cell.itertext())
            cells.append(text if cell.get("t") == "inlineStr" else int(text))
        rows.append(tuple(cells))
    return rows[1:]  # type: ignore[return-value]


def altered(folder: Path, dropped: str) -> Path:
    """A copy of the data without one destination's flights of the fourth quarter."""
    shutil.copy(EXAMPLES / "airlines.csv", folder)
    with (
        gzip.open(EXAMPLES / FLIGHTS, "rt", newline="") as source,
        gzip.open(folder / FLIGHTS, "wt", newline="", compresslevel=1) as copy,
    ):
        rows = csv.DictReader(source)
        writer = csv.DictWriter(copy, rows.fieldnames or ())
        writer.writeheader()
        writer.writerows(r for r in rows if r["dest"] != dropped or int(r["month"]) < 10)
    return folder


@pytest.fixture(scope="module")
def environ() -> Iterator[dict[str, str]]:
    """An installation of its own, on no default port; its socket's path has to be short."""
    with tempfile.TemporaryDirectory(prefix="wr-") as home:
        yield {
            **os.environ,
            "WORKROOM_HOME": f"{home}/h",
            "XDG_CONFIG_HOME": f"{home}/c",
            "ORCHESTRATOR_ADDRESS": "127.0.0.1:0",
        }


@pytest.mark.docker
@pytest.mark.timeout(300)
@pytest.mark.parametrize("dropped", ["", "ORD", "ATL"])
def test_the_demo_computes_its_answer(tmp_path, environ, dropped):
    data = altered(tmp_path, dropped) if dropped else EXAMPLES
    out = tmp_path / "out"
    done = subprocess.run(
        [sys.executable, EXAMPLES / "demo.py", "--data", data, "--out", out],
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    expected = recomputed(data)
    assert told(done.stdout) == expected
    assert written(out / "report.xlsx") == expected
    assert (out / "drops.png").read_bytes().startswith(b"\x89PNG\r\n")
    if dropped:
        assert expected[0][0] == dropped and expected[0][2] == 0


def test_the_recomputation_knows_the_right_answer():
    assert recomputed(EXAMPLES) == [
        ("ORD", 4759, 4170, -589, "MQ", "Envoy Air", -362),
        ("BOS", 4062, 3751, -311, "DL", "Delta Air Lines Inc.", -210),
        ("SEA", 1220, 909, -311, "DL", "Delta Air Lines Inc.", -122),
        ("LAX", 4389, 4153, -236, "UA", "United Air Lines Inc.", -159),
        ("PWM", 593, 398, -195, "B6", "JetBlue Airways", -130),
    ]


def _number(text: str) -> int:
    return int(text.replace(",", ""))
