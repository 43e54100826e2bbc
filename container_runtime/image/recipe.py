"""Owns what goes into an image: its files, and the digest that says whether it must be rebuilt.

Knows nothing of the engine or of this machine.
"""

import hashlib
import io
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources

DEFAULT_BASE_IMAGE = "debian:bookworm-slim"
DIGEST_CHARACTERS = 16
FILES = {
    "base": ("Dockerfile", "base.txt"),
    "full": ("Dockerfile", "base.txt", "full.txt"),
}


@dataclass(frozen=True)
class Recipe:
    """Everything that decides what an image holds."""

    name: str
    base_image: str
    files: Mapping[str, bytes]

    @property
    def repository(self) -> str:
        return f"workroom/{self.name}"

    @property
    def digest(self) -> str:
        """Changes when the build's files, the base's name or the image's name change."""
        digest = hashlib.sha256(f"{self.name}\n{self.base_image}\n".encode())
        for name, content in sorted(self.files.items()):
            digest.update(f"{name} {len(content)}\n".encode())
            digest.update(content)
        return digest.hexdigest()[:DIGEST_CHARACTERS]

    def context(self, machine: Mapping[str, bytes]) -> bytes:
        """The build context as a tar; `machine` fills the folder of the same name."""
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as archive:
            _add(archive, self.files, "")
            _add(archive, machine, "machine/")
        return packed.getvalue()


def load_recipe(name: str, base_image: str = DEFAULT_BASE_IMAGE) -> Recipe:
    """The recipe that this version carries for `name`, one of the FILES."""
    folder = resources.files("container_runtime.image")
    return Recipe(
        name=name,
        base_image=base_image,
        files={file: folder.joinpath(file).read_bytes() for file in FILES[name]},
    )


def _add(archive: tarfile.TarFile, files: Mapping[str, bytes], prefix: str) -> None:
    """Adds with fixed times and owners, so that the engine's build cache sees equal files."""
    for name, content in sorted(files.items()):
        entry = tarfile.TarInfo(prefix + name)
        entry.size = len(content)
        entry.mode = 0o644
        archive.addfile(entry, io.BytesIO(content))
