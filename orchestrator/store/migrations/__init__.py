"""Owns how the database's form came to be: numbered steps that run when the orchestrator starts.

The library that runs the steps takes longer to load than the rest of the store, so it is loaded
only for a database that needs steps: an empty one gets the newest form as it is.
"""

import re
from pathlib import Path

from sqlalchemy import Connection, Engine, inspect, text

from orchestrator.store.tables import metadata

_STEP = re.compile(r"v(\d+)_\w+\.py")
_LOCK = 0x776F726B


def newest() -> str:
    """The number of the last step."""
    names = (path.name for path in (Path(__file__).parent / "versions").iterdir())
    return max(match.group(1) for name in names if (match := _STEP.fullmatch(name)))


def migrate(engine: Engine) -> None:
    """Bring the database to the form that this release needs; does nothing when it has it."""
    with engine.begin() as connection:
        if engine.dialect.name == "postgresql":
            # Orchestrators that start at the same time do it one after the other.
            connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
        tables = inspect(connection).get_table_names()
        if not tables:
            _make(connection)
        elif "alembic_version" not in tables or _version(connection) != newest():
            run_steps(connection)


def run_steps(connection: Connection) -> None:
    """Run every step that the database has not seen."""
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent))
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


def _make(connection: Connection) -> None:
    metadata.create_all(connection)
    # As the library writes it down itself.
    connection.execute(
        text(
            "CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL, "
            "CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num))"
        )
    )
    connection.execute(text("INSERT INTO alembic_version VALUES (:number)"), {"number": newest()})


def _version(connection: Connection) -> str | None:
    return connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
