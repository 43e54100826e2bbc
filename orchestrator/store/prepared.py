"""Owns the statements that every step needs: compiled once, run on the driver's own cursor.

The library's `execute` costs more than the statement itself does; five of these per step are what
the writer's time is spent on. Values are passed as they are, so only plain types may be bound.
"""

from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any

from sqlalchemy import Connection, Insert, Update

Parameters = Mapping[str, Any]


class Prepared:
    """An insert of whole rows, or an update, for one dialect."""

    def __init__(self, statement: Insert | Update) -> None:
        self._statement = statement
        self._dialect = ""
        self._text = ""
        self._names: Sequence[str] | None = None

    def run(self, connection: Connection, *rows: Parameters) -> None:
        """Run it once for each of `rows`."""
        text = self._compiled(connection, rows[0])
        with closing(connection.connection.cursor()) as cursor:
            if len(rows) == 1:
                cursor.execute(text, self._bound(rows[0]))
            else:
                cursor.executemany(text, [self._bound(row) for row in rows])

    def returned(self, connection: Connection, row: Parameters) -> Sequence[Any] | None:
        """Run it and give the first row that it returns."""
        text = self._compiled(connection, row)
        with closing(connection.connection.cursor()) as cursor:
            cursor.execute(text, self._bound(row))
            found: Sequence[Any] | None = cursor.fetchone()
            return found

    def _compiled(self, connection: Connection, row: Parameters) -> str:
        if self._dialect != connection.dialect.name:
            keys = list(row) if isinstance(self._statement, Insert) else None
            compiled = self._statement.compile(dialect=connection.dialect, column_keys=keys)
            self._names = compiled.positiontup
            self._text, self._dialect = str(compiled), connection.dialect.name
        return self._text

    def _bound(self, row: Parameters) -> Any:
        return row if self._names is None else [row[name] for name in self._names]
