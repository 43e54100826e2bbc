"""Owns the failures of setting a machine up; each message says what was tried and what to do."""

import grpc

from workroom.errors import WorkroomError


class SetupFailed(WorkroomError):
    """This machine could not be made ready to run containers."""

    code = grpc.StatusCode.FAILED_PRECONDITION
    reason = "SETUP_FAILED"


class EngineUnavailable(SetupFailed):
    """No container engine answers, and none may be started here."""

    reason = "ENGINE_UNAVAILABLE"


class EngineRefused(SetupFailed):
    """The engine that answers cannot be used: another kernel, another system, or no access."""

    reason = "ENGINE_REFUSED"


class EngineStartFailed(SetupFailed):
    """The engine was started by us and did not come to answer."""

    reason = "ENGINE_START_FAILED"


class EngineInUse(SetupFailed):
    """The engine is not stopped, because containers still run on it."""

    reason = "ENGINE_IN_USE"


class EngineCallFailed(SetupFailed):
    """The engine answered a call with an error; `status` is its HTTP status, 0 if it gave none."""

    reason = "ENGINE_CALL_FAILED"

    def __init__(self, message: str, *, status: int = 0, path: str = "") -> None:
        super().__init__(message, status=str(status), path=path)
        self.status = status


class InstallFailed(SetupFailed):
    """A package that is needed could not be installed."""

    reason = "INSTALL_FAILED"


class BaseImageUnavailable(SetupFailed):
    """The base image can neither be pulled nor made here."""

    reason = "BASE_IMAGE_UNAVAILABLE"


class ImageBuildFailed(SetupFailed):
    """A step of an image's build failed; the message carries the end of its output."""

    reason = "IMAGE_BUILD_FAILED"


class SetupBusy(SetupFailed):
    """Another process holds the set-up lock for longer than a set-up takes."""

    reason = "SETUP_BUSY"
