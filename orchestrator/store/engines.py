"""Owns how a database is reached: SQLite in a file, or PostgreSQL, shared by orchestrators."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, NullPool, create_engine, event, make_url, text
from sqlalchemy.exc import ArgumentError

from workroom.errors import InvalidField

CHANNEL = "workroom_sessions"
"""Where orchestrators on one PostgreSQL tell each other in which sessions something happened."""

_NAMES_PER_NOTICE = 100
_PROGRAM_TIMES = (
    # A paused process must not keep its locks: whoever takes its sessions over would wait.
    "-c idle_in_transaction_session_timeout=5s -c lock_timeout=30s -c timezone=UTC"
)


@dataclass(frozen=True, slots=True)
class Engines:
    """One for the writer and one for the readers. `shared`: other processes may write, too."""

    writing: Engine
    reading: Engine
    shared: bool

    def dispose(self) -> None:
        self.writing.dispose()
        self.reading.dispose()

    def tell(self, connection: Connection, teller: str, session_ids: Sequence[str]) -> None:
        """Tell the other orchestrators once the transaction is committed."""
        for first in range(0, len(session_ids), _NAMES_PER_NOTICE):
            names = session_ids[first : first + _NAMES_PER_NOTICE]
            connection.execute(
                text("SELECT pg_notify(:channel, :names)"),
                {"channel": CHANNEL, "names": " ".join((teller, *names))},
            )


def parse_url(url: str) -> URL:
    """Where a database is. Errors: `InvalidField` (`database_url`)."""
    try:
        parsed = make_url(url)
    except ArgumentError as error:
        raise InvalidField("database_url", "is no URL") from error
    match parsed.get_backend_name():
        case "sqlite" if parsed.database:
            return parsed.set(drivername="sqlite")
        case "postgresql" | "postgres":
            return parsed.set(drivername="postgresql+psycopg")
    raise InvalidField("database_url", "must begin with sqlite:///, and a path, or postgresql://")


def open_engines(url: URL) -> Engines:
    """Engines for a database; nothing is connected yet."""
    if url.get_backend_name() == "sqlite":
        path = Path(url.database or "")
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        return Engines(_sqlite(url, "BEGIN IMMEDIATE"), _sqlite(url, "BEGIN"), shared=False)
    return Engines(_postgresql(url), _postgresql(url, "REPEATABLE READ"), shared=True)


def is_lost(connection: Connection) -> bool:
    """Whether the server at the other end is gone, so that a new connection is needed."""
    if connection.invalidated:
        return True
    return bool(getattr(connection.connection.dbapi_connection, "closed", False))


def _postgresql(url: URL, isolation: str = "READ COMMITTED") -> Engine:
    return create_engine(
        url,
        poolclass=NullPool,
        isolation_level=isolation,
        connect_args={
            "connect_timeout": 10,
            "application_name": "workroom-orchestrator",
            "options": _PROGRAM_TIMES,
        },
    )


def _sqlite(url: URL, begin: str) -> Engine:
    engine = create_engine(
        url, poolclass=NullPool, connect_args={"check_same_thread": False, "timeout": 30}
    )

    # The driver's own transactions begin too late and as readers: they are turned off and begun
    # by hand.
    @event.listens_for(engine, "connect")
    def prepare(connection: Any, _: object) -> None:
        connection.isolation_level = None
        with _cursor(connection) as cursor:
            cursor.execute("PRAGMA journal_mode=WAL")
            cursor.execute("PRAGMA synchronous=FULL")
            cursor.execute("PRAGMA foreign_keys=ON")

    @event.listens_for(engine, "begin")
    def start(connection: Connection) -> None:
        connection.exec_driver_sql(begin)

    return engine


@contextmanager
def _cursor(connection: Any) -> Iterator[Any]:
    cursor = connection.cursor()
    try:
        yield cursor
    finally:
        cursor.close()
