"""Owns where an installation keeps its things on this machine; knows nothing of their content."""

import os
import secrets
import stat
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import grpc

from workroom.errors import WorkroomError

SOCKET_PATH_LIMIT = 107
"""Bytes that the kernel keeps of a unix socket's path, its final zero aside."""


class UnusablePath(WorkroomError):
    """A path cannot serve: its owner, its mode, its kind or its length is wrong."""

    code = grpc.StatusCode.FAILED_PRECONDITION
    reason = "UNUSABLE_PATH"


@dataclass(frozen=True)
class Home:
    """The folder of one installation: `run/` (sockets), `db/`, `spool/` and `log/` inside it."""

    root: Path

    @classmethod
    def from_env(cls, environ: Mapping[str, str] = os.environ) -> Self:
        """`WORKROOM_HOME`, else `workroom` in the XDG data folder; nothing is created.

        Raises `UnusablePath` where the variable is not an absolute path.
        """
        named = environ.get("WORKROOM_HOME")
        if named:
            if not Path(named).is_absolute():
                raise UnusablePath(f"WORKROOM_HOME={named} is not absolute", path=named)
            return cls(Path(named))
        data = environ.get("XDG_DATA_HOME") or ""
        base = Path(data) if Path(data).is_absolute() else Path.home() / ".local" / "share"
        return cls(base / "workroom")

    @property
    def run(self) -> Path:
        """Sockets and locks; may be emptied while nothing runs."""
        return self.root / "run"

    @property
    def db(self) -> Path:
        """Databases and blobs."""
        return self.root / "db"

    @property
    def spool(self) -> Path:
        """Output of executions."""
        return self.root / "spool"

    @property
    def log(self) -> Path:
        """Log files."""
        return self.root / "log"

    def create(self) -> Self:
        """Makes what is missing, each folder with mode 0700, and checks that all of it is ours.

        A folder of ours that others could enter is closed to them. Raises `UnusablePath` where a
        folder belongs to another user, is not one, or cannot be made.
        """
        try:
            self.root.parent.mkdir(parents=True, exist_ok=True)
            for folder in (self.root, self.run, self.db, self.spool, self.log):
                private_folder(folder)
        except OSError as error:
            raise UnusablePath(
                f"{error.filename or self.root} cannot be made: {error.strerror}; set "
                "WORKROOM_HOME to a folder that this user can write to",
                path=str(self.root),
            ) from error
        return self

    def socket(self, name: str) -> Path:
        """Path of the socket called `name`. Raises `UnusablePath` where it would be too long."""
        return check_socket_path(self.run / f"{name}.sock")

    def installation_id(self) -> str:
        """The id that labels whatever this installation owns, `inst_…`; made at the first call.

        Processes that ask at the same time get the same one.
        """
        file = self.root / "installation_id"
        try:
            return _read_id(file)
        except FileNotFoundError:
            _create_once(file, f"inst_{secrets.token_hex(12)}\n")
            return _read_id(file)


def private_folder(path: Path) -> None:
    """Makes `path` (its parent exists) or closes it to others, so that only its owner enters.

    Raises `UnusablePath` where it is another user's, or no folder.
    """
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        pass
    found = path.stat()
    if not stat.S_ISDIR(found.st_mode):
        raise UnusablePath(f"{path} is not a folder", path=str(path))
    if found.st_uid != os.geteuid():
        raise UnusablePath(
            f"{path} belongs to uid {found.st_uid}, this process is uid {os.geteuid()}: "
            "run as its owner, or set WORKROOM_HOME to a folder of your own",
            path=str(path),
            owner=str(found.st_uid),
        )
    if stat.S_IMODE(found.st_mode) != 0o700:
        path.chmod(0o700)


def check_socket_path(path: Path) -> Path:
    """`path` itself. Raises `UnusablePath` where the kernel would not take it for a socket."""
    if not path.is_absolute():
        raise UnusablePath(f"socket path {path} is not absolute", path=str(path))
    length = len(os.fsencode(path))
    if length > SOCKET_PATH_LIMIT:
        raise UnusablePath(
            f"socket path {path} has {length} bytes, the kernel takes {SOCKET_PATH_LIMIT}: "
            "set WORKROOM_HOME to a shorter path",
            path=str(path),
            length=str(length),
            limit=str(SOCKET_PATH_LIMIT),
        )
    return path


def _read_id(file: Path) -> str:
    text = file.read_text().strip()
    if not text.startswith("inst_") or not text.removeprefix("inst_").isalnum():
        raise UnusablePath(f"{file} does not hold an installation id (inst_…)", path=str(file))
    return text


def _create_once(file: Path, text: str) -> None:
    """Puts `text` into `file` whole, unless some process was first."""
    with tempfile.NamedTemporaryFile("w", dir=file.parent, prefix=f".{file.name}.") as made:
        made.write(text)
        made.flush()
        os.fsync(made.fileno())
        try:
            os.link(made.name, file)
        except FileExistsError:
            pass
