"""Owns the tables; the migrations make them, and a test compares the two.

Every table has a `project_id`. `ordinal` orders rows for paging. Times are microseconds since
1970 in UTC; values that nobody queries by are JSON in `body`.
"""

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
)

metadata = MetaData()

# SQLite counts up by itself only for a column that is exactly INTEGER PRIMARY KEY.
Ordinal = BigInteger().with_variant(Integer, "sqlite")

sessions = Table(
    "sessions",
    metadata,
    Column("ordinal", Ordinal, primary_key=True, autoincrement=True),
    Column("id", String(64), nullable=False, unique=True),
    Column("project_id", String(64), nullable=False),
    Column("state", String(32), nullable=False),
    Column("last_sequence_number", BigInteger, nullable=False),
    Column("create_time", BigInteger, nullable=False),
    Column("last_active_time", BigInteger, nullable=False),
    Column("holder", String(64), nullable=False, server_default=""),
    Column("lease", BigInteger, nullable=False, server_default="0"),
    Column("agent_id", String(64), nullable=False, server_default=""),
    Column("error", Text, nullable=False),
    Column("usage", Text, nullable=False),
    Column("body", Text, nullable=False),
    Index("sessions_by_project", "project_id", "ordinal"),
    Index("sessions_by_agent", "agent_id", "ordinal"),
    sqlite_autoincrement=True,
)

agents = Table(
    "agents",
    metadata,
    Column("ordinal", Ordinal, primary_key=True, autoincrement=True),
    Column("id", String(64), nullable=False, unique=True),
    Column("project_id", String(64), nullable=False),
    Column("body", Text, nullable=False),
    Index("agents_by_project", "project_id", "ordinal"),
    sqlite_autoincrement=True,
)

orchestrators = Table(
    "orchestrators",
    metadata,
    Column("name", String(64), primary_key=True),
    Column("project_id", String(64), nullable=False),
    Column("alive_until", BigInteger, nullable=False),
)

session_metadata = Table(
    "session_metadata",
    metadata,
    Column("session_id", String(64), ForeignKey("sessions.id", ondelete="CASCADE"), nullable=False),
    Column("project_id", String(64), nullable=False),
    Column("key", String(64), nullable=False),
    Column("value", String(512), nullable=False),
    UniqueConstraint("session_id", "key"),
    Index("session_metadata_by_pair", "project_id", "key", "value"),
)

environments = Table(
    "environments",
    metadata,
    Column("id", String(64), primary_key=True),
    Column(
        "session_id",
        String(64),
        ForeignKey("sessions.id", ondelete="CASCADE"),
        nullable=False,
        unique=True,
    ),
    Column("project_id", String(64), nullable=False),
    Column("state", String(32), nullable=False),
    Column("body", Text, nullable=False),
    Index("environments_by_state", "state"),
)

turns = Table(
    "turns",
    metadata,
    Column("ordinal", Ordinal, primary_key=True, autoincrement=True),
    Column("id", String(64), nullable=False, unique=True),
    Column("session_id", String(64), ForeignKey("sessions.id", ondelete="CASCADE"), nullable=False),
    Column("project_id", String(64), nullable=False),
    Column("state", String(32), nullable=False),
    Column("stage", String(32), nullable=False),
    Column("step", Integer, nullable=False),
    Column("cancel_requested", Boolean, nullable=False),
    Column("body", Text, nullable=False),
    Index("turns_by_session", "session_id", "ordinal"),
    Index("turns_by_state", "state", "session_id"),
    sqlite_autoincrement=True,
)

items = Table(
    "items",
    metadata,
    Column("ordinal", Ordinal, primary_key=True, autoincrement=True),
    Column("id", String(64), nullable=False, unique=True),
    Column("session_id", String(64), ForeignKey("sessions.id", ondelete="CASCADE"), nullable=False),
    Column("turn_id", String(64), nullable=False),
    Column("project_id", String(64), nullable=False),
    Column("state", String(32), nullable=False),
    Column("body", Text, nullable=False),
    Index("items_by_session", "session_id", "ordinal"),
    Index("items_by_turn", "turn_id", "ordinal"),
    sqlite_autoincrement=True,
)

events = Table(
    "events",
    metadata,
    Column(
        "session_id", String(64), ForeignKey("sessions.id", ondelete="CASCADE"), primary_key=True
    ),
    Column("sequence_number", BigInteger, primary_key=True),
    Column("project_id", String(64), nullable=False),
    Column("turn_id", String(64), nullable=False),
    Column("kind", String(48), nullable=False),
    Column("create_time", BigInteger, nullable=False),
    Column("body", Text, nullable=False),
    sqlite_with_rowid=False,
)

artifacts = Table(
    "artifacts",
    metadata,
    Column("ordinal", Ordinal, primary_key=True, autoincrement=True),
    Column("id", String(64), nullable=False, unique=True),
    Column("session_id", String(64), ForeignKey("sessions.id", ondelete="CASCADE"), nullable=False),
    Column("project_id", String(64), nullable=False),
    Column("path", Text, nullable=False),
    Column("body", Text, nullable=False),
    Index("artifacts_by_session", "session_id", "ordinal"),
    sqlite_autoincrement=True,
)

files = Table(
    "files",
    metadata,
    Column("ordinal", Ordinal, primary_key=True, autoincrement=True),
    Column("id", String(64), nullable=False, unique=True),
    Column("project_id", String(64), nullable=False),
    Column("body", Text, nullable=False),
    Index("files_by_project", "project_id", "ordinal"),
    sqlite_autoincrement=True,
)

api_keys = Table(
    "api_keys",
    metadata,
    Column("ordinal", Ordinal, primary_key=True, autoincrement=True),
    Column("id", String(64), nullable=False, unique=True),
    Column("project_id", String(64), nullable=False),
    Column("name", String(255), nullable=False),
    Column("create_time", BigInteger, nullable=False),
    Column("sha256", String(64), nullable=False, unique=True),
    sqlite_autoincrement=True,
)

request_ids = Table(
    "request_ids",
    metadata,
    Column("project_id", String(64), primary_key=True),
    Column("scope", String(128), primary_key=True),
    Column("request_id", String(128), primary_key=True),
    Column("digest", String(64), nullable=False),
    Column("resource_id", String(64), nullable=False),
    Column("session_id", String(64), nullable=False),
    Index("request_ids_by_resource", "resource_id"),
    Index("request_ids_by_session", "session_id"),
)
