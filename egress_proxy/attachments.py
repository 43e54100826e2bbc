"""Owns which container is under which policy; knows no wire."""

import asyncio
import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol

import structlog

from egress_proxy.errors import AttachmentNotFound, RevisionMismatch
from egress_proxy.policy import Policy, check_offered
from workroom.errors import InvalidField

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Attachment:
    """A container under a policy. `revision` counts the policies that it has had, from 1."""

    container_id: str
    project_id: str
    policy: Policy
    revision: int
    create_time: datetime
    update_time: datetime


class Store(Protocol):
    """Where attachments outlive the process."""

    async def get(self, container_id: str) -> Attachment | None: ...

    async def put(self, attachment: Attachment) -> None: ...

    async def drop(self, container_id: str) -> bool: ...

    async def page(self, after: int | None, limit: int) -> Sequence[tuple[int, Attachment]]: ...


def utc_now() -> datetime:
    """The time of the wall clock."""
    return datetime.now(UTC)


class Attachments:
    """All attachments of one node. Changes are made one after another."""

    def __init__(self, store: Store, *, now: Callable[[], datetime] = utc_now) -> None:
        self._store = store
        self._now = now
        self._changing = asyncio.Lock()

    async def attach(
        self,
        container_id: str,
        project_id: str,
        policy: Policy,
        expected_revision: int | None = None,
    ) -> Attachment:
        """Puts a container under a policy; under the one it has, nothing changes.

        Errors: `NotSupported` and `InvalidField` for a policy that is not offered or a container
        of another project, `RevisionMismatch`.
        """
        check_offered(policy)
        async with self._changing:
            current = await self._store.get(container_id)
            if current is not None and current.project_id != project_id:
                raise InvalidField("project_id", "the container belongs to another project")
            _check_revision(container_id, expected_revision, current.revision if current else 0)
            if current is not None and current.policy == policy:
                return current
            attachment = self._next(container_id, project_id, policy, current)
            await self._store.put(attachment)
        log.info(
            "attached",
            container_id=container_id,
            access=policy.access.value,
            revision=attachment.revision,
        )
        return attachment

    async def detach(self, container_id: str) -> None:
        """Takes a container's attachment away, if it has one."""
        async with self._changing:
            dropped = await self._store.drop(container_id)
        if dropped:
            log.info("detached", container_id=container_id)

    async def get(self, container_id: str) -> Attachment:
        """A container's attachment. Errors: `AttachmentNotFound`."""
        found = await self._store.get(container_id)
        if found is None:
            raise AttachmentNotFound(
                f"container {container_id} is not attached", container_id=container_id
            )
        return found

    async def page(self, after: int | None, limit: int) -> Sequence[tuple[int, Attachment]]:
        """Attachments with their numbers, oldest first."""
        return await self._store.page(after, limit)

    def _next(
        self, container_id: str, project_id: str, policy: Policy, current: Attachment | None
    ) -> Attachment:
        now = self._now()
        if current is None:
            return Attachment(container_id, project_id, policy, 1, now, now)
        return dataclasses.replace(
            current, policy=policy, revision=current.revision + 1, update_time=now
        )


def _check_revision(container_id: str, expected: int | None, current: int) -> None:
    if expected is not None and expected != current:
        raise RevisionMismatch(
            f"container {container_id} is at revision {current}, not {expected}",
            container_id=container_id,
            revision=str(current),
        )
