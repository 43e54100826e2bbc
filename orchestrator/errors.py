"""Owns the errors that callers of the orchestrator see."""

import grpc

from workroom.errors import WorkroomError


class SessionNotFound(WorkroomError):
    """There is no such session, or it was deleted."""

    code = grpc.StatusCode.NOT_FOUND
    reason = "SESSION_NOT_FOUND"

    def __init__(self, session_id: str) -> None:
        super().__init__(f"there is no session {session_id!r}", session_id=session_id)


class AgentNotFound(WorkroomError):
    """There is no such saved agent."""

    code = grpc.StatusCode.NOT_FOUND
    reason = "AGENT_NOT_FOUND"

    def __init__(self, agent_id: str) -> None:
        super().__init__(f"there is no agent {agent_id!r}", agent_id=agent_id)


class TurnNotFound(WorkroomError):
    """There is no such turn."""

    code = grpc.StatusCode.NOT_FOUND
    reason = "TURN_NOT_FOUND"

    def __init__(self, turn_id: str) -> None:
        super().__init__(f"there is no turn {turn_id!r}", turn_id=turn_id)


class StoredFileNotFound(WorkroomError):
    """There is no such uploaded file."""

    code = grpc.StatusCode.NOT_FOUND
    reason = "FILE_NOT_FOUND"

    def __init__(self, file_id: str) -> None:
        super().__init__(f"there is no file {file_id!r}", file_id=file_id)


class ArtifactNotFound(WorkroomError):
    """There is no such artifact."""

    code = grpc.StatusCode.NOT_FOUND
    reason = "ARTIFACT_NOT_FOUND"

    def __init__(self, artifact_id: str) -> None:
        super().__init__(f"there is no artifact {artifact_id!r}", artifact_id=artifact_id)


class RequestIdReused(WorkroomError):
    """A `request_id` came again with another request."""

    code = grpc.StatusCode.ALREADY_EXISTS
    reason = "REQUEST_ID_REUSED"

    def __init__(self, request_id: str) -> None:
        super().__init__(
            f"request_id {request_id!r} was used for another request; choose a new one",
            request_id=request_id,
        )


class SessionFailed(WorkroomError):
    """The session cannot go on."""

    code = grpc.StatusCode.FAILED_PRECONDITION
    reason = "SESSION_FAILED"

    def __init__(self, session_id: str, cause: str) -> None:
        super().__init__(
            f"session {session_id!r} has failed: {cause}; create another one",
            session_id=session_id,
            cause=cause,
        )


class QueueFull(WorkroomError):
    """As many turns wait as may."""

    code = grpc.StatusCode.RESOURCE_EXHAUSTED
    reason = "QUEUE_FULL"

    def __init__(self, session_id: str, limit: int) -> None:
        super().__init__(
            f"{limit} turns are waiting in session {session_id!r} already; "
            "send the input again when one has ended",
            session_id=session_id,
            limit=str(limit),
        )


class SequenceOutOfRange(WorkroomError):
    """A watcher asked to go on after an event that has not happened."""

    code = grpc.StatusCode.OUT_OF_RANGE
    reason = "SEQUENCE_OUT_OF_RANGE"

    def __init__(self, after: int, last: int) -> None:
        super().__init__(
            f"after_sequence_number {after} is past the log's end, {last}",
            after=str(after),
            last=str(last),
        )


class EndpointNotAllowed(WorkroomError):
    """The caller may not name a model server."""

    code = grpc.StatusCode.PERMISSION_DENIED
    reason = "ENDPOINT_NOT_ALLOWED"


class OwnerOnly(WorkroomError):
    """Only the owner of the installation may do this."""

    code = grpc.StatusCode.PERMISSION_DENIED
    reason = "OWNER_ONLY"


class FileTooLarge(WorkroomError):
    """An upload is larger than the limit."""

    code = grpc.StatusCode.RESOURCE_EXHAUSTED
    reason = "FILE_TOO_LARGE"

    def __init__(self, limit_bytes: int) -> None:
        super().__init__(
            f"the file is larger than {limit_bytes} bytes", limit_bytes=str(limit_bytes)
        )


class DiskFull(WorkroomError):
    """The disk is nearly full."""

    code = grpc.StatusCode.RESOURCE_EXHAUSTED
    reason = "DISK_FULL"


class AlreadyRunning(WorkroomError):
    """Another orchestrator has the data folder."""

    code = grpc.StatusCode.FAILED_PRECONDITION
    reason = "ALREADY_RUNNING"


class DatabaseUnavailable(WorkroomError):
    """The database does not answer; whether what was to be written is there is not known."""

    code = grpc.StatusCode.UNAVAILABLE
    reason = "DATABASE_UNAVAILABLE"


class LeaseLost(WorkroomError):
    """Another orchestrator works on the session: nothing may be written for it here."""

    code = grpc.StatusCode.ABORTED
    reason = "LEASE_LOST"

    def __init__(self, session_id: str) -> None:
        super().__init__(
            f"another orchestrator works on session {session_id!r}", session_id=session_id
        )


class UnusableKeyFile(WorkroomError):
    """The key that encrypts secrets at rest cannot be used."""

    code = grpc.StatusCode.FAILED_PRECONDITION
    reason = "UNUSABLE_KEY_FILE"


class ModelNotConfigured(WorkroomError):
    """Neither the deployment nor the session says who serves the model."""

    code = grpc.StatusCode.FAILED_PRECONDITION
    reason = "MODEL_NOT_CONFIGURED"
