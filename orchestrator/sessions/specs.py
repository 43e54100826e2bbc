"""Owns what a caller asks for when it makes a session, and what of it is allowed."""

import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from orchestrator.records import (
    Access,
    Agent,
    ContentPart,
    ImageUrl,
    ModelEndpoint,
    NetworkPolicy,
    Permissions,
    Review,
    Script,
    Size,
    Text,
)
from workroom.errors import InvalidField, NotSupported

DEFAULT_PROJECT = "default"
WORKSPACE = "/workspace"
OUTPUTS = "/workspace/outputs"

INSTRUCTIONS_BYTES = 256 * 1024
SCRIPT_BYTES = 256 * 1024
INPUT_BYTES = 1024 * 1024
INLINE_BYTES = 1024 * 1024
IMAGES_BYTES = 2 * 1024 * 1024
FILES = 1000
DESCRIPTION_CHARS = 4096
FILES_TEXT_BYTES = 2 * 1024 * 1024
PATH_BYTES = 4096
VARIABLES = 256
VARIABLES_BYTES = 64 * 1024
METADATA_PAIRS = 16
KEY_CHARS = 64
VALUE_CHARS = 512
NAME_CHARS = 256
REQUEST_ID_CHARS = 128


@dataclass(frozen=True, slots=True)
class FileSpec:
    """A file to put in place: an uploaded one, or its content itself."""

    path: str
    source: str | bytes
    description: str = ""


@dataclass(frozen=True, slots=True)
class EnvironmentSpec:
    """The environment that is asked for."""

    image: str = ""
    size: Size = Size.MEDIUM
    files: tuple[FileSpec, ...] = ()
    network: NetworkPolicy = field(default_factory=NetworkPolicy)
    env: Mapping[str, str] = field(default_factory=dict)
    permissions: Permissions = field(default_factory=Permissions)


@dataclass(frozen=True, slots=True)
class SessionSpec:
    """The session that is asked for. `endpoint_key` is the model server's key, as it came."""

    project_id: str = DEFAULT_PROJECT
    agent: Agent = field(default_factory=Agent)
    environment: EnvironmentSpec = field(default_factory=EnvironmentSpec)
    review: Review = Review.NONE
    input: tuple[ContentPart, ...] = ()
    metadata: Mapping[str, str] = field(default_factory=dict)
    endpoint_key: str = field(default="", repr=False)
    agent_id: str = ""


def check_session(spec: SessionSpec) -> None:
    """Errors: `InvalidField` and `NotSupported`, naming the field of the request."""
    check_project(spec.project_id)
    check_agent(spec.agent)
    _check_environment(spec.environment)
    if spec.review is not Review.NONE:
        raise NotSupported("review", "only REVIEW_NONE is available in this version")
    check_metadata(spec.metadata)
    if spec.input:
        check_input(spec.input)


def check_project(project_id: str) -> None:
    if project_id != DEFAULT_PROJECT:
        raise InvalidField("project_id", f"only `{DEFAULT_PROJECT}` exists")


def check_request_id(request_id: str) -> None:
    if len(request_id) > REQUEST_ID_CHARS:
        raise InvalidField("request_id", f"longer than {REQUEST_ID_CHARS} characters")


def check_metadata(metadata: Mapping[str, str]) -> None:
    if len(metadata) > METADATA_PAIRS:
        raise InvalidField("metadata", f"more than {METADATA_PAIRS} pairs")
    for key, value in metadata.items():
        if not 1 <= len(key) <= KEY_CHARS:
            raise InvalidField("metadata", f"a key must have 1 to {KEY_CHARS} characters")
        if len(value) > VALUE_CHARS:
            raise InvalidField(f"metadata.{key}", f"longer than {VALUE_CHARS} characters")


def check_input(parts: Sequence[ContentPart]) -> None:
    """What a user says: something, and not too much of it."""
    texts = [part.text for part in parts if isinstance(part, Text)]
    images = [part.url for part in parts if isinstance(part, ImageUrl)]
    if not images and not any(text.strip() for text in texts):
        raise InvalidField("input", "must not be empty")
    if sum(len(text.encode()) for text in texts) > INPUT_BYTES:
        raise InvalidField("input", f"more than {INPUT_BYTES} bytes of text")
    for url in images:
        if not url.startswith(("https://", "data:image/")):
            raise InvalidField("input.image_url", "must be an https URL or a data URL of an image")
    if sum(len(url) for url in images) > IMAGES_BYTES:
        raise InvalidField("input.image_url", f"more than {IMAGES_BYTES} bytes together")


def check_agent(agent: Agent) -> None:
    """An agent by itself. Errors: `InvalidField`."""
    if len(agent.model) > NAME_CHARS:
        raise InvalidField("agent.model", f"longer than {NAME_CHARS} characters")
    if len(agent.instructions.encode()) > INSTRUCTIONS_BYTES:
        raise InvalidField("agent.instructions", f"more than {INSTRUCTIONS_BYTES} bytes")
    match agent.provider:
        case Script(name=name, yaml=yaml):
            if not 1 <= len(name) <= NAME_CHARS or not name.isprintable():
                raise InvalidField(
                    "agent.provider.script.name", f"must have 1 to {NAME_CHARS} characters"
                )
            if len(yaml.encode()) > SCRIPT_BYTES:
                raise InvalidField("agent.provider.script.yaml", f"more than {SCRIPT_BYTES} bytes")
            if agent.model:
                raise InvalidField("agent.model", "must be empty where a script is played")
        case ModelEndpoint(base_url=base_url) if not base_url:
            raise InvalidField("agent.provider.endpoint.base_url", "must not be empty")


def _check_environment(spec: EnvironmentSpec) -> None:
    if len(spec.image) > NAME_CHARS or any(not "!" <= letter <= "~" for letter in spec.image):
        problem = f"{spec.image!r} is not the name of an image; the default is `base`"
        raise InvalidField("environment.image", problem)
    _check_network(spec.network)
    if len(spec.env) > VARIABLES:
        raise InvalidField("environment.env", f"more than {VARIABLES} variables")
    if sum(len(f"{name}{value}".encode()) for name, value in spec.env.items()) > VARIABLES_BYTES:
        raise InvalidField("environment.env", f"more than {VARIABLES_BYTES} bytes together")
    for name, value in spec.env.items():
        if not name or "=" in name or "\0" in name + value:
            raise InvalidField("environment.env", "a name is empty or has `=` or NUL in it")
    if len(spec.files) > FILES:
        raise InvalidField("environment.files", f"more than {FILES} files")
    if sum(len(f"{file.path}{file.description}".encode()) for file in spec.files) > (
        FILES_TEXT_BYTES
    ):
        raise InvalidField(
            "environment.files", f"paths and descriptions have more than {FILES_TEXT_BYTES} bytes"
        )
    taken: set[str] = set()
    for number, file in enumerate(spec.files):
        _check_file(file, f"environment.files[{number}]")
        if file.path in taken:
            raise InvalidField(f"environment.files[{number}].path", "is used twice")
        taken.add(file.path)
    for number, file in enumerate(spec.files):
        folders = _folders(file.path)
        if taken & folders:
            raise InvalidField(
                f"environment.files[{number}].path", "lies under the path of another file"
            )


def _check_file(file: FileSpec, field: str) -> None:
    path = file.path
    is_plain = posixpath.normpath(path) == path and path.isprintable()
    if not is_plain or not path.startswith(f"{WORKSPACE}/") or len(path.encode()) > PATH_BYTES:
        raise InvalidField(f"{field}.path", f"must be an absolute, plain path under {WORKSPACE}")
    if path == OUTPUTS or path.startswith(f"{OUTPUTS}/"):
        raise InvalidField(f"{field}.path", f"must not be in {OUTPUTS}, where results go")
    if not file.source and isinstance(file.source, str):
        raise InvalidField(field, "needs `file_id` or `inline`")
    if isinstance(file.source, bytes) and len(file.source) > INLINE_BYTES:
        raise InvalidField(f"{field}.inline", f"more than {INLINE_BYTES} bytes; upload the file")
    if len(file.description) > DESCRIPTION_CHARS:
        raise InvalidField(f"{field}.description", f"longer than {DESCRIPTION_CHARS} characters")


def _check_network(network: NetworkPolicy) -> None:
    """The lists against the access; what a domain may look like, the egress proxy says."""
    if network.access is not Access.RESTRICTED:
        for name in ("allowed_domains", "blocked_domains"):
            if getattr(network, name):
                raise InvalidField(f"environment.network.{name}", "needs ACCESS_RESTRICTED")


def _folders(path: str) -> set[str]:
    parts = path.split("/")
    return {"/".join(parts[:count]) for count in range(2, len(parts))}
