"""Owns hearing from the other orchestrators on one PostgreSQL in which sessions they wrote."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

import psycopg
from sqlalchemy import URL

from orchestrator.errors import DatabaseUnavailable
from orchestrator.store.engines import CHANNEL


async def notices(url: URL, listener: str) -> AsyncGenerator[str, None]:
    """Ids of sessions, without an end; one empty string once it listens.

    Nothing that `listener` itself wrote is among them. Errors: `DatabaseUnavailable`.
    """
    address = url.set(drivername="postgresql").render_as_string(hide_password=False)
    try:
        connection = await psycopg.AsyncConnection.connect(
            address, autocommit=True, connect_timeout=10, application_name="workroom-listener"
        )
        async with connection:
            await connection.execute(f"LISTEN {CHANNEL}")
            yield ""
            async with aclosing(connection.notifies()) as heard:
                async for notice in heard:
                    teller, *session_ids = notice.payload.split(" ")
                    if teller != listener:
                        for session_id in session_ids:
                            yield session_id
    except psycopg.Error as error:
        raise DatabaseUnavailable(f"the database is out of reach: {error}") from error
