"""Owns uploaded files: their content and what is known of it, together."""

from collections.abc import AsyncIterator, Callable
from datetime import datetime

from orchestrator import ids
from orchestrator.blobs import Blobs
from orchestrator.records import StoredFile
from orchestrator.sessions.specs import check_project
from orchestrator.store.files import FileStore
from orchestrator.store.requests import RequestId
from workroom.errors import InvalidField

FILE_BYTES = 1024 * 1024 * 1024
FILENAME_BYTES = 255


class Files:
    """Files that clients upload."""

    def __init__(self, store: FileStore, blobs: Blobs, clock: Callable[[], datetime]) -> None:
        self._store = store
        self._blobs = blobs
        self._clock = clock

    async def upload(
        self,
        project_id: str,
        filename: str,
        content: AsyncIterator[bytes],
        request: Callable[[str], RequestId | None],
    ) -> StoredFile:
        """Store a file; nothing is kept on an error.

        `request` makes the caller's id out of the content's SHA-256, which is known at the end
        only. Errors: `InvalidField`, `FileTooLarge`, `DiskFull`, `RequestIdReused`.
        """
        check_project(project_id)
        _check_name(filename)
        file_id = ids.new("file")
        blob = f"files/{file_id}"
        try:
            stored = await self._blobs.write(blob, content, limit_bytes=FILE_BYTES)
            file = StoredFile(
                id=file_id,
                project_id=project_id,
                filename=filename,
                size_bytes=stored.size_bytes,
                sha256=stored.sha256,
                create_time=self._clock(),
                blob=blob,
            )
            kept = await self._store.add(file, request(stored.sha256))
        except BaseException:
            await self._blobs.delete(blob)
            raise
        if kept.id != file_id:
            await self._blobs.delete(blob)
        return kept

    async def delete(self, file_id: str) -> None:
        """Delete a file; sessions that have it keep their copy. Nothing there is fine."""
        removed = await self._store.remove(file_id)
        if removed is not None:
            await self._blobs.delete(removed.blob)


def _check_name(filename: str) -> None:
    if not 1 <= len(filename.encode()) <= FILENAME_BYTES:
        raise InvalidField("open.filename", f"must have 1 to {FILENAME_BYTES} bytes")
    if "/" in filename or any(ord(letter) < 32 or ord(letter) == 127 for letter in filename):
        raise InvalidField("open.filename", "must have no slash and no control characters")
