"""Who works on a session: the holder of its lease, and which orchestrators are alive."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "orchestrators",
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("project_id", sa.String(length=64), nullable=False),
        sa.Column("alive_until", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )
    op.add_column(
        "sessions",
        sa.Column("holder", sa.String(length=64), nullable=False, server_default=""),
    )
    op.add_column(
        "sessions", sa.Column("lease", sa.BigInteger(), nullable=False, server_default="0")
    )
