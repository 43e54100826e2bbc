"""Owns the map of the staged data that the model gets: what there is, in how few words.

What the container says of its files is evidence to be shown, bounded and checked; never trusted.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from importlib.resources import files as resources
from posixpath import basename

import grpc
import structlog

from orchestrator.records import EnvironmentFile
from orchestrator.runtime_errors import runtime_errors
from orchestrator.tools.output import readable
from workroom.runtime.v1 import executions_pb2 as pb
from workroom.runtime.v1 import executions_pb2_grpc as rpc

log = structlog.get_logger(__name__)

BUDGET_CHARS = 8_000
"""Of the whole map."""
MAX_SURVEYED = 200
"""Files that are looked into; the rest is listed by path and size."""
SURVEY_TIME = timedelta(seconds=15)
"""How long the files are looked into; a count not finished by then is given as a lower bound."""
MAX_QUESTION_BYTES = 100 * 1024
"""Of the list of files, which goes in as one argument."""
MAX_NAME_CHARS = 64
MAX_COLUMNS_SHOWN = 60
MAX_TABLES_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Table:
    """A table as the container described it."""

    name: str
    columns: tuple[tuple[str, str], ...]
    column_count: int
    rows: int
    complete: bool
    header: bool = True
    delimiter: str = ","


@dataclass(frozen=True, slots=True)
class Surveyed:
    """A file as the container described it."""

    kind: str
    tables: tuple[Table, ...]


class Surveyor:
    """Looks into files of containers."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub = rpc.ExecutionServiceStub(channel)

    async def data_map(self, container_id: str, files: Sequence[EnvironmentFile]) -> str:
        """The map of `files`; empty when there are none.

        Errors: `ContainerGone`, `RuntimeUnavailable`. That the files cannot be looked into (no
        Python in the image, no time) is none: then paths, sizes and descriptions remain.
        """
        if not files:
            return ""
        paths = [file.path for file in files[:MAX_SURVEYED]]
        return render(files, await self._survey(container_id, paths))

    async def _survey(self, container_id: str, paths: list[str]) -> dict[str, Surveyed]:
        script = resources(__package__).joinpath("survey.py").read_bytes()
        while len(asked := _question(paths).encode()) > MAX_QUESTION_BYTES:
            paths = paths[: len(paths) // 2]
        command = pb.Command(argv=pb.Argv(args=["python3", "-I", "-", asked.decode()]))
        start = pb.StartExecutionRequest(container_id=container_id, command=command)
        start.timeout.FromTimedelta(SURVEY_TIME + timedelta(seconds=5))
        request = pb.RunRequest(start=start, stdin=script, output_limit_bytes=1024 * 1024)
        with runtime_errors(container_id):
            answer = await self._stub.Run(
                request, timeout=(SURVEY_TIME + timedelta(seconds=25)).total_seconds()
            )
        outcome = answer.execution.outcome
        if outcome.WhichOneof("kind") != "exited" or outcome.exited.code:
            said = answer.stderr.tail or answer.stderr.head
            log.info(
                "files were not looked into",
                container_id=container_id,
                outcome=outcome.WhichOneof("kind"),
                said=readable(said[-300:].decode(errors="replace")),
            )
        lines = answer.stdout.head.split(b"\n")
        found = dict(filter(None, (_read_line(line) for line in lines)))
        return {path: found[number] for number, path in enumerate(paths) if number in found}


def render(files: Sequence[EnvironmentFile], surveyed: Mapping[str, Surveyed]) -> str:
    """The map within the budget: details of the first files, then paths, then how many more."""
    lines: list[str] = []
    room = BUDGET_CHARS - 80
    for number, file in enumerate(files):
        full = _entry(file, surveyed.get(file.path))
        entry = full if len(full) < room // 2 or len(full) < 400 else _headline(file, "")
        if len(entry) >= room:
            lines.append(f"… and {len(files) - number} more files")
            break
        lines.append(entry)
        room -= len(entry) + 1
    return "\n".join(lines)


def _question(paths: Sequence[str]) -> str:
    return json.dumps({"files": paths, "seconds": SURVEY_TIME.total_seconds()})


def _entry(file: EnvironmentFile, found: Surveyed | None) -> str:
    lines = [_headline(file, found.kind if found else "")]
    if file.description:
        lines.append(f"  {' '.join(readable(file.description).split())}")
    tables = found.tables if found else ()
    lines.extend(f"  {_table(table)}" for table in tables[:MAX_TABLES_SHOWN])
    if len(tables) > MAX_TABLES_SHOWN:
        lines.append(f"  … and {len(tables) - MAX_TABLES_SHOWN} more tables")
    return "\n".join(lines)


def _headline(file: EnvironmentFile, kind: str) -> str:
    kind = kind or _kind_by_name(file.path)
    return f"- {readable(file.path)} ({file.size_bytes:,} bytes{', ' + kind if kind else ''})"


def _kind_by_name(path: str) -> str:
    _, dot, suffix = basename(path).rpartition(".")
    return f".{readable(suffix[:12])} file" if dot and suffix else ""


def _table(table: Table) -> str:
    rows = f"{table.rows:,} rows" if table.complete else f"at least {table.rows:,} rows"
    if table.name and not table.complete:
        rows = "rows not counted"
    columns = [f"{name} {kind}".strip() for name, kind in table.columns[:MAX_COLUMNS_SHOWN]]
    if table.column_count > len(columns):
        columns.append(f"… and {table.column_count - len(columns)} more")
    title = f"table {table.name}: {rows}" if table.name else rows
    if not table.header:
        title += ", no header"
    if table.delimiter != ",":
        title += f", separated by {table.delimiter!r}"
    return f"{title}; columns: {', '.join(columns)}"


def _read_line(line: bytes) -> tuple[int, Surveyed] | None:
    """One line of the survey; None where it is not what the survey would print."""
    try:
        found = json.loads(line)
        tables = tuple(_read_table(table) for table in found.get("tables", ()))
        return _count(found["file"]), Surveyed(_word(found.get("kind", "")), tables)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def _read_table(table: Mapping[str, object]) -> Table:
    columns = table["columns"]
    if not isinstance(columns, list):
        raise TypeError("columns is no list")
    return Table(
        name=_word(table.get("name", "")),
        columns=tuple((_word(column["name"]), _word(column["type"])) for column in columns),
        column_count=_count(table.get("count", len(columns))),
        rows=_count(table["rows"]),
        complete=table["complete"] is True,
        header=table.get("header", True) is True,
        delimiter=_word(table.get("delimiter", ",")) or "\t",
    )


def _word(value: object) -> str:
    """A name on one line, of bounded length."""
    text = " ".join(readable(str(value)[: 4 * MAX_NAME_CHARS]).split())
    return text if len(text) <= MAX_NAME_CHARS else text[: MAX_NAME_CHARS - 1] + "…"


def _count(value: object) -> int:
    if not isinstance(value, int):
        raise TypeError("not a count")
    return value
