"""Owns what an error means for the turn in which it came up, and for the session."""

from dataclasses import dataclass

import grpc

from orchestrator.errors import ModelNotConfigured
from orchestrator.models.errors import ModelError, ScriptFailed
from orchestrator.records import EnvironmentState, TurnError
from orchestrator.runtime_errors import ContainerGone, EnvironmentUnusable
from workroom.errors import InvalidField, WorkroomError

_MAY_PASS = {"NODE_FULL", "DISK_FULL", "TOO_MANY_EXECUTIONS"}


class TurnFailed(WorkroomError):
    """The turn cannot be brought to an end, for a reason of its own. `turn_code` is its code."""

    code = grpc.StatusCode.FAILED_PRECONDITION
    reason = "TURN_FAILED"

    def __init__(self, turn_code: str, message: str) -> None:
        super().__init__(message, turn_code=turn_code)
        self.turn_code = turn_code


@dataclass(frozen=True, slots=True)
class Failure:
    """What follows from an error. With an `environment` state the session has failed as well."""

    error: TurnError
    environment: EnvironmentState | None = None


def understand(error: BaseException) -> Failure | None:
    """What an error means; None when it is one that nobody foresaw."""
    match first_of(error):
        case TurnFailed() as failed:
            return Failure(TurnError(failed.turn_code, failed.message))
        case ScriptFailed() as failed:
            return Failure(TurnError("script_error", failed.message))
        case ModelError() as failed:
            return Failure(TurnError(failed.turn_code, failed.message))
        case ContainerGone() as gone:
            return Failure(TurnError("sandbox_error", gone.message), EnvironmentState.EXPIRED)
        case EnvironmentUnusable() as unusable:
            lost = unusable.metadata.get("cause") not in _MAY_PASS
            return Failure(
                TurnError("sandbox_error", unusable.message),
                EnvironmentState.FAILED if lost else None,
            )
        case (InvalidField() | ModelNotConfigured()) as invalid:
            return Failure(TurnError("invalid_request", invalid.message))
        case WorkroomError() as other:
            return Failure(TurnError("sandbox_error", other.message))
    return None


def first_of(error: BaseException) -> BaseException:
    """The first error of a group, of whatever depth; an error that is none, itself."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
