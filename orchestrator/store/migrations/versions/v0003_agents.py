"""Saved agents, and which of them a session was created with."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "agents",
        sa.Column(
            "ordinal",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            autoincrement=True,
            nullable=False,
        ),
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("project_id", sa.String(length=64), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("ordinal"),
        sa.UniqueConstraint("id"),
        sqlite_autoincrement=True,
    )
    op.create_index("agents_by_project", "agents", ["project_id", "ordinal"], unique=False)
    op.add_column(
        "sessions",
        sa.Column("agent_id", sa.String(length=64), nullable=False, server_default=""),
    )
    op.create_index("sessions_by_agent", "sessions", ["agent_id", "ordinal"], unique=False)
