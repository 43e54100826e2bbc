"""Owns what the runtime's and the egress proxy's failures mean here, and what to do about them."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import grpc

from workroom.errors import InvalidField, WorkroomError
from workroom.rpc.status import from_rpc_error

CURES = {
    "IMAGE_NOT_FOUND": "name an image that the node has or can pull; `base` is always there",
    "NODE_FULL": "delete sessions that are not needed, or raise the runtime's limit",
    "DISK_FULL": "free space on the node's disk, or delete sessions that are not needed",
    "NO_SPACE": "the container's disk is full: remove files that are not needed",
    "SUPERVISOR_FAILED": "look into the runtime's log for what the container's supervisor said",
    "SUPERVISOR_UNAVAILABLE": "try again; if it stays, make a new session",
    "ENGINE_UNAVAILABLE": "start the container engine (`systemctl start docker`, or `dockerd`)",
    "TOO_MANY_EXECUTIONS": "wait until other commands have ended, or run fewer at the same time",
    "NOT_SUPPORTED": "ask for network access `disabled`",
    "CAPTURE_FAILED": "the node needs kernel 5.9 or newer, and the egress proxy root to start with",
    "CAPTURE_UNAVAILABLE": "restart the egress proxy; `egress-helper.log` says what was wrong",
}
"""What to do about a reason, fit for the model and for the user."""


class RuntimeUnavailable(WorkroomError):
    """The container runtime does not answer; commands that were started go on."""

    code = grpc.StatusCode.UNAVAILABLE
    reason = "RUNTIME_UNAVAILABLE"


class EgressUnavailable(WorkroomError):
    """The egress proxy does not answer, so no container can be given to anybody."""

    code = grpc.StatusCode.UNAVAILABLE
    reason = "EGRESS_UNAVAILABLE"


class ContainerGone(WorkroomError):
    """The environment's container is not there any more, or cannot run commands."""

    code = grpc.StatusCode.FAILED_PRECONDITION
    reason = "CONTAINER_GONE"

    def __init__(self, container_id: str, message: str) -> None:
        super().__init__(
            f"the environment's container is gone: {message}; make a new session",
            container_id=container_id,
        )


class EnvironmentUnusable(WorkroomError):
    """The environment could not be made; the message says why and what to do."""

    code = grpc.StatusCode.FAILED_PRECONDITION
    reason = "ENVIRONMENT_UNUSABLE"


def cure(reason: str) -> str:
    """What to do about a failure, as the end of a sentence; empty where nothing is known."""
    return f"; {CURES[reason]}" if reason in CURES else ""


def container_error(error: WorkroomError, container_id: str = "") -> WorkroomError:
    """The runtime's error as the orchestrator tells it."""
    if error.reason in ("CONTAINER_NOT_FOUND", "CONTAINER_NOT_ACTIVE"):
        return ContainerGone(container_id, error.message)
    if error.code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
        return RuntimeUnavailable(
            f"container runtime: {error.message}{cure(error.reason)}",
            retry_after=error.retry_after or timedelta(seconds=1),
            cause=error.reason,
        )
    return EnvironmentUnusable(f"{error.message}{cure(error.reason)}", cause=error.reason)


@contextmanager
def runtime_errors(container_id: str = "") -> Iterator[None]:
    """Turns the failure of a call of the runtime in the body into `container_error` of it.

    An error that names a file keeps its class and reason.
    """
    try:
        yield
    except grpc.aio.AioRpcError as failure:
        error = from_rpc_error(failure)
        if error.reason in _ABOUT_FILES:
            raise error from failure
        raise container_error(error, container_id) from failure


def policy_error(failure: grpc.aio.AioRpcError) -> WorkroomError:
    """What the egress proxy says against a policy, about the fields that the caller wrote."""
    error = from_rpc_error(failure)
    if isinstance(error, InvalidField):
        field = f"environment.network.{error.field.removeprefix('policy.')}"
        return type(error)(field, error.problem)
    return EgressUnavailable(
        f"egress proxy: {error.message}; without it no network policy can be kept",
        retry_after=error.retry_after or timedelta(seconds=1),
    )


@contextmanager
def egress_errors() -> Iterator[None]:
    """Turns the failure of a call of the egress proxy in the body into an error with the cure."""
    try:
        yield
    except grpc.aio.AioRpcError as failure:
        error = from_rpc_error(failure)
        if error.code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
            raise EgressUnavailable(
                f"egress proxy: {error.message}; without it no container is given out",
                retry_after=error.retry_after or timedelta(seconds=1),
            ) from failure
        raise EnvironmentUnusable(
            f"network policy: {error.message}{cure(error.reason)}", cause=error.reason
        ) from failure


_ABOUT_FILES = frozenset(
    {
        "FILE_NOT_FOUND",
        "FILE_PERMISSION_DENIED",
        "NOT_A_DIRECTORY",
        "IS_A_DIRECTORY",
        "NOT_A_REGULAR_FILE",
        "OFFSET_OUT_OF_RANGE",
    }
)
