"""Owns the life of environments: a container made under its policy, filled, deleted, swept up.

Knows the runtime and the egress proxy by their protos; keeps no state of its own.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence, Set
from contextlib import suppress
from datetime import timedelta

import grpc
import structlog

from orchestrator.environments.data_map import Surveyor
from orchestrator.environments.files import CALL_TIME, ContainerFiles, OutputFile
from orchestrator.records import (
    Access,
    Environment,
    EnvironmentFile,
    EnvironmentState,
    NetworkPolicy,
    Size,
)
from orchestrator.runtime_errors import (
    EgressUnavailable,
    RuntimeUnavailable,
    container_error,
    egress_errors,
    policy_error,
    runtime_errors,
)
from workroom.egress.v1 import egress_pb2, egress_pb2_grpc
from workroom.errors import WorkroomError
from workroom.runtime.v1 import containers_pb2 as pb
from workroom.runtime.v1 import containers_pb2_grpc as rpc

log = structlog.get_logger(__name__)

OWNER_LABEL = "workroom.owner"
OWNER = "orchestrator"
ENVIRONMENT_LABEL = "workroom.environment_id"
SESSION_LABEL = "workroom.session_id"

CREATE_TIME = timedelta(minutes=10)
"""How long a container may take to come up, its image's download included."""
IDLE_TIME = timedelta(minutes=20)
"""How long a container may be idle before it is suspended; the next use resumes it."""

_GONE = (pb.Container.STATE_FAILED, pb.Container.STATE_DELETING)

OpenFile = Callable[[EnvironmentFile], AsyncIterator[bytes]]
"""Reads the content of a file that is to be put into an environment."""

_SIZES = {
    Size.SMALL: pb.Container.SIZE_SMALL,
    Size.MEDIUM: pb.Container.SIZE_MEDIUM,
    Size.LARGE: pb.Container.SIZE_LARGE,
}
_ACCESS = {
    Access.DISABLED: egress_pb2.Policy.ACCESS_DISABLED,
    Access.RESTRICTED: egress_pb2.Policy.ACCESS_RESTRICTED,
    Access.ENABLED: egress_pb2.Policy.ACCESS_ENABLED,
}


class Environments:
    """Makes, fills, reads and deletes the containers of environments."""

    def __init__(
        self,
        runtime: grpc.aio.Channel,
        egress: grpc.aio.Channel,
        *,
        idle_time: timedelta = IDLE_TIME,
    ) -> None:
        self._containers = rpc.ContainerServiceStub(runtime)
        self._egress = egress_pb2_grpc.EgressServiceStub(egress)
        self._files = ContainerFiles(runtime)
        self._surveyor = Surveyor(runtime)
        self._idle_time = idle_time

    async def prepare(
        self, environment: Environment, *, session_id: str, open_file: OpenFile
    ) -> str:
        """Makes the environment's container and returns its id: no command has run in it yet.

        Its network policy is in force and its files are in place. Safe to repeat at any point:
        the same environment gets the same container. When it cannot be made, nothing is left.

        Errors: `EnvironmentUnusable`, for good; `RuntimeUnavailable`, `EgressUnavailable`, which
        may pass; then what was made stays for the repeated call.
        """
        container = await self._create(environment, session_id)
        container_id = container.id
        try:
            await self._attach(container, environment, session_id)
            await self._files.make_directory(container_id, "/workspace/outputs")
            for file in environment.files:
                await self._files.write(container_id, file.path, open_file(file))
        except (RuntimeUnavailable, EgressUnavailable):
            raise
        except Exception:
            with suppress(WorkroomError):
                await self.dispose(container_id)
            raise
        return container_id

    async def check(self, container_id: str) -> None:
        """Raises `ContainerGone` when commands cannot run in the container any more.

        One that is suspended is not gone: the next command resumes it.
        """
        with runtime_errors(container_id):
            answer = await self._containers.GetContainer(
                pb.GetContainerRequest(container_id=container_id),
                timeout=CALL_TIME.total_seconds(),
            )
        if answer.container.state in _GONE:
            failed = answer.container.failure or "it is being deleted"
            raise container_error(_NotActive(failed), container_id)

    async def check_network(self, network: NetworkPolicy) -> None:
        """Raises `InvalidField`, naming the field, for a policy that would not be kept.

        Errors: `EgressUnavailable`.
        """
        if network.access is Access.DISABLED:
            return
        request = egress_pb2.ExplainDecisionRequest(policy=_policy(network), host="example.invalid")
        try:
            await self._egress.ExplainDecision(request, timeout=CALL_TIME.total_seconds())
        except grpc.aio.AioRpcError as failure:
            raise policy_error(failure) from failure

    async def rejoin(self, environment: Environment, *, session_id: str) -> None:
        """Makes sure, before a turn, that the container runs under its network policy.

        One that was suspended comes back with a network of its own that nobody polices yet, and
        which leads nowhere until then. Errors: `ContainerGone`, `EnvironmentUnusable`,
        `RuntimeUnavailable`, `EgressUnavailable`.
        """
        is_open = environment.network.access is not Access.DISABLED
        if not is_open and environment.state is not EnvironmentState.SUSPENDED:
            return
        with runtime_errors(environment.container_id):
            answer = await self._containers.ResumeContainer(
                pb.ResumeContainerRequest(container_id=environment.container_id),
                timeout=CREATE_TIME.total_seconds(),
            )
        if is_open:
            await self._attach(answer.container, environment, session_id)

    async def dispose(self, container_id: str) -> None:
        """Deletes a container with all that is in it. Idempotent.

        Errors: `RuntimeUnavailable`, `EgressUnavailable`; the container is deleted in the latter.
        """
        with runtime_errors(container_id):
            await self._containers.DeleteContainer(
                pb.DeleteContainerRequest(container_id=container_id),
                timeout=CALL_TIME.total_seconds(),
            )
        with egress_errors():
            await self._egress.DetachContainer(
                egress_pb2.DetachContainerRequest(container_id=container_id),
                timeout=CALL_TIME.total_seconds(),
            )

    async def sweep(self, live: Callable[[], Awaitable[Set[str]]]) -> int:
        """Deletes the containers that no live environment owns; returns how many.

        `live` gives the ids of the environments that may have a container. It is asked after the
        containers were listed, so that one made meanwhile is safe.
        """
        owned = await self._owned()
        if not owned:
            return 0
        keep = await live()
        swept = 0
        for container in owned:
            if container.labels.get(ENVIRONMENT_LABEL, "") not in keep:
                log.info("sweeping container", container_id=container.id)
                await self.dispose(container.id)
                swept += 1
        return swept

    async def data_map(self, container_id: str, files: Sequence[EnvironmentFile]) -> str:
        """A short text about the staged files, for the model: paths, sizes, tables, columns, rows.

        Where the image has no Python, or the survey takes too long, it says what is known without.
        """
        return await self._surveyor.data_map(container_id, files)

    async def outputs(self, container_id: str) -> list[OutputFile]:
        """The regular files below /workspace/outputs, at most 1,000."""
        return await self._files.outputs(container_id)

    def read_file(self, container_id: str, path: str | bytes) -> AsyncIterator[bytes]:
        """A file's content, in pieces. Errors: `RuntimeUnavailable` when it was cut."""
        return self._files.read(container_id, path)

    async def _create(self, environment: Environment, session_id: str) -> pb.Container:
        request = pb.CreateContainerRequest(
            request_id=environment.id,
            project_id=environment.project_id,
            image=environment.image,
            size=_SIZES[environment.size],
            labels={
                OWNER_LABEL: OWNER,
                ENVIRONMENT_LABEL: environment.id,
                SESSION_LABEL: session_id,
            },
            environment=[
                pb.EnvironmentVariable(name=name, value=value)
                for name, value in environment.env.items()
            ],
        )
        request.idle_timeout.FromTimedelta(self._idle_time)
        with runtime_errors():
            answer = await self._containers.CreateContainer(
                request, timeout=CREATE_TIME.total_seconds()
            )
        return answer.container

    async def _attach(
        self, container: pb.Container, environment: Environment, session_id: str
    ) -> None:
        request = egress_pb2.AttachContainerRequest(
            container_id=container.id,
            project_id=environment.project_id,
            policy=_policy(environment.network),
            session_id=session_id,
        )
        if container.HasField("main_process"):
            request.process.pid = container.main_process.pid
            request.process.start_ticks = container.main_process.start_ticks
        with egress_errors():
            await self._egress.AttachContainer(request, timeout=CALL_TIME.total_seconds())

    async def _owned(self) -> list[pb.Container]:
        found: list[pb.Container] = []
        token = ""
        while True:
            request = pb.ListContainersRequest(
                page_size=100, page_token=token, labels={OWNER_LABEL: OWNER}
            )
            with runtime_errors():
                answer = await self._containers.ListContainers(
                    request, timeout=CALL_TIME.total_seconds()
                )
            found.extend(answer.containers)
            token = answer.next_page_token
            if not token:
                return found


class _NotActive(WorkroomError):
    code = grpc.StatusCode.FAILED_PRECONDITION
    reason = "CONTAINER_NOT_ACTIVE"


def _policy(network: NetworkPolicy) -> egress_pb2.Policy:
    return egress_pb2.Policy(
        access=_ACCESS[network.access],
        allowed_domains=network.allowed_domains,
        blocked_domains=network.blocked_domains,
    )
