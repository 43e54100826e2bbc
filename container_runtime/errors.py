"""Owns the errors of the runtime's own domain; those of the supervisor link live with the link."""

import grpc

from workroom.errors import WorkroomError


class ContainerNotFound(WorkroomError):
    """No container has this id."""

    code = grpc.StatusCode.NOT_FOUND
    reason = "CONTAINER_NOT_FOUND"


class ContainerNotActive(WorkroomError):
    """The container is being made, being suspended or deleted, or has failed."""

    code = grpc.StatusCode.FAILED_PRECONDITION
    reason = "CONTAINER_NOT_ACTIVE"


class ImageNotFound(WorkroomError):
    """The image is neither on the node nor can it be pulled."""

    code = grpc.StatusCode.NOT_FOUND
    reason = "IMAGE_NOT_FOUND"


class ContainerBusy(WorkroomError):
    """Commands run in the container."""

    code = grpc.StatusCode.FAILED_PRECONDITION
    reason = "CONTAINER_BUSY"


class EventsGone(WorkroomError):
    """The events behind this sequence number are not kept any more, or never were."""

    code = grpc.StatusCode.OUT_OF_RANGE
    reason = "EVENTS_GONE"


class RequestIdReused(WorkroomError):
    """A `request_id` came again with another request."""

    code = grpc.StatusCode.ALREADY_EXISTS
    reason = "REQUEST_ID_REUSED"


class NodeFull(WorkroomError):
    """The node holds as many containers as it may."""

    code = grpc.StatusCode.RESOURCE_EXHAUSTED
    reason = "NODE_FULL"


class HostDiskFull(WorkroomError):
    """The node's disk is nearly full: nothing new is begun."""

    code = grpc.StatusCode.RESOURCE_EXHAUSTED
    reason = "DISK_FULL"


class SupervisorFailed(WorkroomError):
    """The container came up and its supervisor did not."""

    code = grpc.StatusCode.FAILED_PRECONDITION
    reason = "SUPERVISOR_FAILED"


class SupervisorUnavailable(WorkroomError):
    """The supervisor did not answer in time; the call is safe to repeat."""

    code = grpc.StatusCode.UNAVAILABLE
    reason = "SUPERVISOR_UNAVAILABLE"


class EngineUnavailable(WorkroomError):
    """The container engine does not answer, or not as it should."""

    code = grpc.StatusCode.UNAVAILABLE
    reason = "ENGINE_UNAVAILABLE"


class EngineRefused(WorkroomError):
    """The engine answered that it will not do what was asked; a fault of the node's setup."""

    code = grpc.StatusCode.FAILED_PRECONDITION
    reason = "ENGINE_REFUSED"


class ContainerGone(EngineRefused):
    """The engine has no such container any more."""


class HostUnsuitable(WorkroomError):
    """This machine cannot run containers for Workroom, and why."""

    code = grpc.StatusCode.FAILED_PRECONDITION
    reason = "HOST_UNSUITABLE"


class StoreUnreadable(WorkroomError):
    """The runtime's database was written by another release."""

    code = grpc.StatusCode.FAILED_PRECONDITION
    reason = "STORE_UNREADABLE"


class ExecutionUnknown(WorkroomError):
    """No execution has this id."""

    code = grpc.StatusCode.NOT_FOUND
    reason = "EXECUTION_NOT_FOUND"


class ExecutionExists(WorkroomError):
    """The id is that of another command."""

    code = grpc.StatusCode.ALREADY_EXISTS
    reason = "EXECUTION_EXISTS"


class OffsetOutOfRange(WorkroomError):
    """An offset is past what there is."""

    code = grpc.StatusCode.OUT_OF_RANGE
    reason = "OFFSET_OUT_OF_RANGE"


class StdinNotOpen(WorkroomError):
    """Standard input is not open, or the command has ended."""

    code = grpc.StatusCode.FAILED_PRECONDITION
    reason = "STDIN_CLOSED"


class StdinFull(WorkroomError):
    """The command does not read what it was sent; `accepted_offset` says how far it got."""

    code = grpc.StatusCode.RESOURCE_EXHAUSTED
    reason = "STDIN_FULL"


class NoTerminal(WorkroomError):
    """The execution has no terminal."""

    code = grpc.StatusCode.FAILED_PRECONDITION
    reason = "NO_TERMINAL"


class SpoolFailed(WorkroomError):
    """Output could not be put on the node's disk, or was not what follows."""

    code = grpc.StatusCode.INTERNAL
    reason = "SPOOL_FAILED"
