"""Owns what is looked up inside a container about its data files; runs there, with its Python.

Reads `{"files": [...], "seconds": n}` as JSON from the first argument, prints one JSON line per
file, which is named by its place in the list. Standard library only, Python 3.7 or newer, nothing
of this package.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import re
import sqlite3
import sys
import time
from collections.abc import Iterable, Iterator
from typing import Any, TextIO
from urllib.parse import quote

MAX_TABLES = 50
MAX_COLUMNS = 200
SAMPLE_ROWS = 1000
MISSING = {"", "NA", "N/A", "NULL", "null", "None", "nan", "NaN"}
INTEGER = re.compile(r"[+-]?\d+$")
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$")


class Late(Exception):
    """The time is over."""


def main() -> None:
    asked = json.loads(sys.argv[1])
    deadline = time.monotonic() + asked["seconds"]
    csv.field_size_limit(1 << 24)
    for number, path in enumerate(asked["files"]):
        if time.monotonic() > deadline:
            return
        found: dict[str, Any] = {"file": number}
        try:
            look(path, found, deadline)
        except Exception as error:
            found["problem"] = str(error)[:200]
        sys.stdout.write(json.dumps(found) + "\n")
        sys.stdout.flush()


def look(path: str, found: dict[str, Any], deadline: float) -> None:
    with open(path, "rb") as file:
        magic = file.read(16)
    if magic == b"SQLite format 3\0":
        found["kind"] = "SQLite"
        found["tables"] = sqlite_tables(path, deadline)
        return
    name = os.path.basename(path).lower()
    packed = magic[:2] == b"\x1f\x8b"
    plain = name[:-3] if packed and name.endswith(".gz") else name
    if plain.endswith((".csv", ".tsv", ".tab")):
        found["kind"] = "CSV, gzip" if packed else "CSV"
        raw = gzip.open(path, "rb") if packed else open(path, "rb")
        with raw, io.TextIOWrapper(raw, "utf-8-sig", "replace", newline="") as text:
            found["tables"] = [csv_table(text, deadline)]


def csv_table(text: TextIO, deadline: float) -> dict[str, Any]:
    start = text.read(1 << 16)
    lines = start.splitlines() or [""]
    delimiter = max(",;\t|", key=lines[0].count)
    rows = csv.reader(chain(start, text), delimiter=delimiter)
    header = next(rows, [])
    named = bool(header) and not any(cell in MISSING or NUMBER.match(cell) for cell in header)
    columns = [
        {"name": cell if named else f"column {number}", "type": ""}
        for number, cell in enumerate(header[:MAX_COLUMNS], 1)
    ]
    table: dict[str, Any] = {"columns": columns, "count": len(header), "rows": 0, "complete": True}
    table["header"] = named
    table["delimiter"] = delimiter
    kinds: list[set[str]] = [set() for _ in columns]
    count = 0
    if header and not named:
        count = 1
        note(header, kinds)
    for row in rows:
        if not row:
            continue
        count += 1
        if count <= SAMPLE_ROWS:
            note(row, kinds)
        elif not count % 1024 and time.monotonic() > deadline:
            table["complete"] = False
            break
    for column, seen in zip(columns, kinds):  # noqa: B905 - older Pythons know no strict
        column["type"] = "text" if "text" in seen else "number" if "number" in seen else ""
        if seen == {"integer"}:
            column["type"] = "integer"
    table["rows"] = count
    return table


def chain(start: str, text: TextIO) -> Iterator[str]:
    """Lines of a file whose beginning was read already."""
    rest = start[start.rfind("\n") + 1 :]
    for line in io.StringIO(start[: len(start) - len(rest)], newline=""):
        yield line
    yield rest + text.readline()
    for line in text:
        yield line


def note(row: Iterable[str], kinds: list[set[str]]) -> None:
    for cell, seen in zip(row, kinds):  # noqa: B905 - rows may be longer or shorter
        cell = cell.strip()
        if cell not in MISSING:
            seen.add(
                "integer" if INTEGER.match(cell) else "number" if NUMBER.match(cell) else "text"
            )


def sqlite_tables(path: str, deadline: float) -> list[dict[str, Any]]:
    uri = "file:" + quote(path.encode("utf-8", "surrogateescape")) + "?mode=ro"
    connection = sqlite3.connect(uri, uri=True)
    connection.set_progress_handler(lambda: time.monotonic() > deadline, 10000)
    try:
        names = connection.execute(
            "SELECT name FROM sqlite_master WHERE type IN ('table', 'view')"
            " AND name NOT LIKE 'sqlite_%' ORDER BY name LIMIT ?",
            (MAX_TABLES,),
        ).fetchall()
        return [sqlite_table(connection, name) for (name,) in names]
    finally:
        connection.close()


def sqlite_table(connection: sqlite3.Connection, name: str) -> dict[str, Any]:
    quoted = '"' + name.replace('"', '""') + '"'
    table: dict[str, Any] = {"name": name, "columns": [], "rows": 0, "complete": True}
    try:
        columns = connection.execute(f"PRAGMA table_info({quoted})").fetchall()
        table["columns"] = [{"name": c[1], "type": c[2]} for c in columns[:MAX_COLUMNS]]
        table["count"] = len(columns)
        table["rows"] = connection.execute(f"SELECT count(*) FROM {quoted}").fetchone()[0]
    except sqlite3.Error:
        table["complete"] = False
    return table


if __name__ == "__main__":
    main()
