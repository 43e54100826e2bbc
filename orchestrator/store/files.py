"""Owns what is known of uploaded files; their content is in the blob store."""

from sqlalchemy import Connection, delete, insert, select

from orchestrator.errors import StoredFileNotFound
from orchestrator.records import StoredFile
from orchestrator.store import codec
from orchestrator.store.database import Database
from orchestrator.store.pages import Page, PageRequest, page_of
from orchestrator.store.requests import RequestId, find_answered, remember
from orchestrator.store.tables import files, request_ids


class FileStore:
    """Uploaded files, as rows."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(self, file: StoredFile, request: RequestId | None) -> StoredFile:
        """Keep a file. A repeated request returns the file that the first one stored.

        Errors: `RequestIdReused`.
        """

        def operation(connection: Connection) -> StoredFile:
            known = _find(connection, find_answered(connection, request) or "")
            if known is not None:
                return known
            connection.execute(
                insert(files),
                {"id": file.id, "project_id": file.project_id, "body": codec.FILE.write(file)},
            )
            remember(connection, request, file.id)
            return file

        return await self._database.write(operation)

    async def get(self, file_id: str) -> StoredFile:
        """One file. Errors: `StoredFileNotFound`."""
        found = await self._database.read(lambda c: _find(c, file_id))
        if found is None:
            raise StoredFileNotFound(file_id)
        return found

    async def page(self, project_id: str, request: PageRequest) -> Page[StoredFile]:
        """Files, newest first. Errors: `InvalidField`."""
        limit, after = request.limit(), request.after("files")
        query = select(files).where(files.c.project_id == project_id)
        if after is not None:
            query = query.where(files.c.ordinal < after)
        query = query.order_by(files.c.ordinal.desc()).limit(limit + 1)
        found = await self._database.read(lambda c: c.execute(query).all())
        return page_of(found, limit, "files", lambda row: codec.FILE.read(row.body))

    async def remove(self, file_id: str) -> StoredFile | None:
        """Forget a file; returns what it was, None when there was none."""

        def operation(connection: Connection) -> StoredFile | None:
            known = _find(connection, file_id)
            connection.execute(delete(files).where(files.c.id == file_id))
            connection.execute(delete(request_ids).where(request_ids.c.resource_id == file_id))
            return known

        return await self._database.write(operation)


def _find(connection: Connection, file_id: str) -> StoredFile | None:
    body = connection.execute(select(files.c.body).where(files.c.id == file_id)).scalar()
    return None if body is None else codec.FILE.read(body)
