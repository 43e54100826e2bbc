"""Owns encryption of secrets at rest; its key lives outside the data folder."""

import os
import stat
from pathlib import Path
from typing import Self

from cryptography.fernet import Fernet, InvalidToken

from orchestrator.errors import UnusableKeyFile


class Vault:
    """Seals texts and opens them again with the key of one installation."""

    def __init__(self, fernet: Fernet, path: Path) -> None:
        self._fernet = fernet
        self._path = path

    @classmethod
    def open(cls, path: Path) -> Self:
        """The vault whose key is in `path`; a missing file is made, once, with mode 0600.

        Errors: `UnusableKeyFile` when others can read the file, or it holds no key.
        """
        try:
            _create_once(path)
            status = path.stat()
            content = path.read_bytes().strip()
        except OSError as error:
            raise UnusableKeyFile(f"key file {path}: {error.strerror}", path=str(path)) from error
        if stat.S_IMODE(status.st_mode) & 0o077 or status.st_uid != os.geteuid():
            raise UnusableKeyFile(
                f"key file {path} must belong to this user and have mode 0600, it has mode "
                f"{stat.S_IMODE(status.st_mode):04o}: run `chmod 600 {path}`",
                path=str(path),
            )
        try:
            return cls(Fernet(content), path)
        except ValueError as error:
            raise UnusableKeyFile(
                f"key file {path} holds no key; put the old one back, or remove the file to "
                "begin with a new one and lose what is encrypted",
                path=str(path),
            ) from error

    def seal(self, text: str) -> str:
        """The text, encrypted; empty stays empty."""
        return self._fernet.encrypt(text.encode()).decode() if text else ""

    def unseal(self, sealed: str) -> str:
        """The text again. Errors: `UnusableKeyFile` when another key sealed it."""
        try:
            return self._fernet.decrypt(sealed.encode()).decode() if sealed else ""
        except InvalidToken as error:
            raise UnusableKeyFile(
                f"key file {self._path} is not the one that this secret was encrypted with",
                path=str(self._path),
            ) from error


def _create_once(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    if path.exists():
        return
    # Written aside and linked, so that nobody ever reads half a key and the first one wins.
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(Fernet.generate_key() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        os.link(draft, path)
    except FileExistsError:
        pass
    finally:
        draft.unlink()
