"""Owns which container is under which policy; knows no wire."""

import asyncio
import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol

import structlog

from egress_proxy.capture.namespaces import Process
from egress_proxy.errors import AttachmentNotFound, RevisionMismatch
from egress_proxy.policy import Access, Policy
from egress_proxy.traffic import Owner
from workroom.errors import InvalidField, NotSupported, WorkroomError

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Wanted:
    """What a caller wants for a container."""

    container_id: str
    project_id: str
    policy: Policy
    bound: Policy | None = None
    process: Process | None = None
    session_id: str = ""


@dataclass(frozen=True)
class Attachment:
    """A container under a policy. `revision` counts the policies that it has had, from 1."""

    wanted: Wanted
    revision: int
    create_time: datetime
    update_time: datetime

    @property
    def container_id(self) -> str:
        """The container."""
        return self.wanted.container_id

    @property
    def policies(self) -> tuple[Policy, ...]:
        """The container's own policy, then its bound."""
        bound = (self.wanted.bound,) if self.wanted.bound is not None else ()
        return (self.wanted.policy, *bound)

    @property
    def owner(self) -> Owner:
        """Whose traffic it is."""
        wanted = self.wanted
        return Owner(wanted.container_id, wanted.project_id, wanted.session_id, self.revision)


class Store(Protocol):
    """Where attachments outlive the process."""

    async def get(self, container_id: str) -> Attachment | None: ...

    async def put(self, attachment: Attachment) -> None: ...

    async def drop(self, container_id: str) -> bool: ...

    async def page(self, after: int | None, limit: int) -> Sequence[tuple[int, Attachment]]: ...


class Capture(Protocol):
    """What makes policies hold."""

    @property
    def available(self) -> bool: ...

    def has(self, container_id: str) -> bool: ...

    async def put(self, owner: Owner, process: Process, policies: Sequence[Policy]) -> None: ...

    def update(self, owner: Owner, policies: Sequence[Policy]) -> None: ...

    async def drop(self, container_id: str) -> None: ...

    async def release_others(self, known: Sequence[str]) -> None: ...


def utc_now() -> datetime:
    """The time of the wall clock."""
    return datetime.now(UTC)


class Attachments:
    """All attachments of one node. Changes are made one after another."""

    def __init__(
        self, store: Store, capture: Capture, *, now: Callable[[], datetime] = utc_now
    ) -> None:
        self._store = store
        self._capture = capture
        self._now = now
        self._changing = asyncio.Lock()

    async def attach(self, wanted: Wanted, expected_revision: int | None = None) -> Attachment:
        """Puts a container under a policy; under the one it has, nothing changes.

        Errors: `NotSupported` and `InvalidField` for a policy that cannot be kept here or a
        container of another project, `RevisionMismatch`, and those of capture.
        """
        async with self._changing:
            current = await self._store.get(wanted.container_id)
            if current is not None and current.wanted.project_id != wanted.project_id:
                raise InvalidField("project_id", "the container belongs to another project")
            _check_revision(
                wanted.container_id, expected_revision, current.revision if current else 0
            )
            wanted = _with_what_is_known(wanted, current)
            attachment = self._next(wanted, current)
            self.check_offered(wanted.policy)
            if wanted.policy.access is not Access.DISABLED and wanted.process is None:
                raise InvalidField(
                    "process",
                    f"is needed for {wanted.policy.access} access: it leads to the network",
                )
            await self._enforce(attachment)
            if attachment is not current:
                await self._store.put(attachment)
        if attachment is not current:
            log.info(
                "attached",
                container_id=wanted.container_id,
                access=wanted.policy.access.value,
                revision=attachment.revision,
            )
        return attachment

    async def detach(self, container_id: str) -> None:
        """Takes a container's attachment away, if it has one, and cuts what is open."""
        async with self._changing:
            await self._capture.drop(container_id)
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

    def check_offered(self, policy: Policy) -> None:
        """Raises `NotSupported` for a policy that cannot be kept on this node."""
        if policy.access is not Access.DISABLED and not self._capture.available:
            raise NotSupported(
                "policy.access",
                f"{policy.access} needs the capture helper, which does not run here "
                "(it needs root); allowed: disabled",
                access=policy.access.value,
            )

    def is_captured(self, container_id: str) -> bool:
        """Whether the container's traffic is captured."""
        return self._capture.has(container_id)

    async def take_up(self) -> None:
        """Captures again what an earlier process had captured."""
        known: list[str] = []
        after: int | None = None
        while found := await self._store.page(after, 100):
            after = found[-1][0]
            for _, attachment in found:
                known.append(attachment.container_id)
                if attachment.wanted.process is None:
                    continue
                try:
                    await self._enforce(attachment)
                except WorkroomError as error:
                    log.warning(
                        "not captured again",
                        container_id=attachment.container_id,
                        problem=str(error),
                    )
        try:
            await self._capture.release_others(known)
        except WorkroomError as error:
            log.warning("others not released", problem=str(error))

    async def _enforce(self, attachment: Attachment) -> None:
        """Makes a policy hold. Under `disabled` a container that never had more stays alone."""
        wanted = attachment.wanted
        if wanted.process is not None and (
            wanted.policy.access is not Access.DISABLED or self._capture.has(wanted.container_id)
        ):
            await self._capture.put(attachment.owner, wanted.process, attachment.policies)
        else:
            self._capture.update(attachment.owner, attachment.policies)

    def _next(self, wanted: Wanted, current: Attachment | None) -> Attachment:
        now = self._now()
        if current is None:
            return Attachment(wanted, 1, now, now)
        if current.wanted == wanted:
            return current
        return dataclasses.replace(
            current, wanted=wanted, revision=current.revision + 1, update_time=now
        )


def _with_what_is_known(wanted: Wanted, current: Attachment | None) -> Wanted:
    """A caller who changes the policy alone need not say again whose container it is."""
    if current is None:
        return wanted
    return dataclasses.replace(
        wanted,
        process=wanted.process or current.wanted.process,
        session_id=wanted.session_id or current.wanted.session_id,
    )


def _check_revision(container_id: str, expected: int | None, current: int) -> None:
    if expected is not None and expected != current:
        raise RevisionMismatch(
            f"container {container_id} is at revision {current}, not {expected}",
            container_id=container_id,
            revision=str(current),
        )
