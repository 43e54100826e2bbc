"""Collects the interpreter that the supervisor brings into any image, and says how to start it.

Knows mounts and command lines as plain values, not the engine. Needs glibc 2.29 or newer on the
host; the image may have any C library or none.
"""

import hashlib
import json
import os
import py_compile
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from container_runtime.agent.spawning import HELD, is_loader_variable
from workroom.errors import WorkroomError

BUNDLE_TARGET = "/run/workroom/python"
"""Where the bundle is mounted inside a container."""

SOCKET_TARGET = "/run/workroom/link"
"""Where a link's directory is mounted inside a container."""

SOCKET_NAME = "host.sock"

CAPABILITIES = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "SETUID", "SETGID", "KILL")
"""All that the container's main process (uid 0) needs and root commands get."""

_AGENT = Path(__file__).parent / "agent"
_EXTRA_MODULES = ("os", "encodings.latin_1", "encodings.ascii", "encodings.utf_8", "agent.main")
_TAR_MODULES = ("agent.archive",)
_LIST_MODULES = """
import sys
sys.path.insert(0, sys.argv[1])
for name in sys.argv[2:]:
    __import__(name)
found = {n: getattr(m, "__file__", None) for n, m in sys.modules.items() if m.__name__ == n}
import json
print(json.dumps([list(sys.version_info[:2]), sys.platlibdir, found]))
"""


class InterpreterUnusable(WorkroomError):
    """This process's interpreter cannot be brought into containers; the message says why."""

    reason = "INTERPRETER_UNUSABLE"


@dataclass(frozen=True, slots=True)
class Mount:
    """A read-only bind mount."""

    source: Path
    target: str


@dataclass(frozen=True, slots=True)
class Bundle:
    """A collected interpreter; the directory's name is a digest of its contents."""

    directory: Path
    loader: str
    """The loader's file name within the bundle's `lib`."""


def collect(state_dir: Path, *, executable: Path | None = None) -> Bundle:
    """Collect an interpreter (this process's own, or another of the same version) below
    `state_dir`, once per content.

    Blocking, about a second. Safe to call from several processes at once. Raises
    InterpreterUnusable or OSError."""
    executable = (executable or Path(sys.executable)).resolve()
    loader = _loader_of(executable)
    with tempfile.TemporaryDirectory(prefix="bundle-", dir=_made(state_dir)) as scratch:
        tree = Path(scratch) / "tree"
        _gather(executable, loader, tree)
        _let_all_read(tree)
        target = state_dir / f"python-{_digest(tree)}"
        if not target.exists():
            try:
                tree.rename(target)
            except OSError:
                if not target.exists():
                    raise
    return Bundle(target, loader.name)


def supervisor_mounts(bundle: Bundle, link_directory: Path) -> Sequence[Mount]:
    """What must be mounted, read-only, for the supervisor to run."""
    return (
        Mount(bundle.directory.absolute(), BUNDLE_TARGET),
        Mount(link_directory.absolute(), SOCKET_TARGET),
    )


def supervisor_command(
    bundle: Bundle, *, root: str = BUNDLE_TARGET, socket: str = f"{SOCKET_TARGET}/{SOCKET_NAME}"
) -> Sequence[str]:
    """The container's entrypoint (the image's own entrypoint and command must be replaced by it).

    Run it as user "0:0", with `CAPABILITIES`, no init of the engine's, no TTY, working directory
    "/", out-of-memory score adjustment 0, and `supervisor_environment`."""
    python = f"{root}/bin/python3"
    return (
        f"{root}/lib/{bundle.loader}",
        "--library-path",
        f"{root}/lib",
        "--argv0",
        python,
        python,
        *("-I", "-S", "-X", "utf8", "-c"),
        f"from agent.main import main; main({socket!r})",
    )


def supervisor_environment(image: Mapping[str, str]) -> Mapping[str, str]:
    """What to add to the container's environment, given the image's.

    Variables that the dynamic loader obeys (LD_PRELOAD and the like) are emptied for the
    supervisor and handed to commands unchanged."""
    found = {name: value for name, value in image.items() if is_loader_variable(name.encode())}
    return {name: "" for name in found} | {
        HELD.decode() + name: value for name, value in found.items()
    }


def _let_all_read(tree: Path) -> None:
    """Whatever the umask: the unprivileged user runs the archive helper from here."""
    for path in [tree, *tree.rglob("*")]:
        path.chmod(0o755 if path.is_dir() or os.access(path, os.X_OK) else 0o644)


def _made(directory: Path) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def _gather(executable: Path, loader: Path, tree: Path) -> None:
    modules = _modules(executable)
    shared = [Path(file) for file in modules.values() if file and not file.endswith(".py")]
    library = tree / "lib"
    packages = tree / sys.platlibdir / f"python{sys.version_info.major}.{sys.version_info.minor}"
    extensions = packages / "lib-dynload"
    for folder in (tree / "bin", library, packages, extensions):
        folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(executable, tree / "bin" / "python3")
    (tree / "bin" / "python3").chmod(0o755)
    for name, source in _libraries(loader, [executable, *shared]).items():
        shutil.copyfile(source, library / name)
    shutil.copyfile(loader, library / loader.name)
    (library / loader.name).chmod(0o755)
    for name, file in modules.items():
        if file is None:
            continue
        source = Path(file)
        if file.endswith(".py"):
            _compile(source, packages / _compiled_name(name, source))
        else:
            shutil.copyfile(source, extensions / source.name)


def _modules(executable: Path) -> dict[str, str | None]:
    """The modules that the supervisor imports, with their files (`None`: built in)."""
    command = [str(executable), "-I", "-S", "-c", _LIST_MODULES, str(_AGENT.parent)]
    listed = subprocess.run(
        [*command, *_EXTRA_MODULES, *_TAR_MODULES],
        stdout=subprocess.PIPE,
        check=True,
        timeout=60,
    )
    version, library, found = json.loads(listed.stdout)
    if version != list(sys.version_info[:2]) or library != sys.platlibdir:
        raise InterpreterUnusable(f"{executable} is not the version that runs here")
    modules = {name: file for name, file in found.items() if name != "__main__"}
    for name, file in modules.items():
        if file and not file.endswith((".py", ".so")):
            raise InterpreterUnusable(f"module {name} comes from {file}", module=name, file=file)
    # The interpreter finds its library by this file, although the module itself is frozen.
    modules["os"] = modules.get("os") or os.__file__
    return modules


def _compiled_name(module: str, source: Path) -> str:
    path = module.replace(".", "/")
    return f"{path}/__init__.pyc" if source.name == "__init__.py" else f"{path}.pyc"


def _compile(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shown = f"{target.parent.name}/{source.name}"
    py_compile.compile(
        str(source),
        str(target),
        dfile=shown,
        doraise=True,
        optimize=1,
        invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
    )


def _loader_of(executable: Path) -> Path:
    """The loader that an ELF file names."""
    data = executable.read_bytes()
    if data[:5] != b"\x7fELF\x02" or data[5] != 1:
        raise InterpreterUnusable(f"{executable} is not a 64-bit ELF file", file=str(executable))
    (table,) = struct.unpack_from("<Q", data, 32)
    size, count = struct.unpack_from("<HH", data, 54)
    for at in range(table, table + size * count, size):
        kind, _, offset, _, _, length = struct.unpack_from("<IIQQQQ", data, at)
        if kind == 3:
            return Path(os.fsdecode(data[offset : offset + length].rstrip(b"\0"))).resolve()
    raise InterpreterUnusable(f"{executable} names no loader", file=str(executable))


def _libraries(loader: Path, files: Sequence[Path]) -> dict[str, Path]:
    """The shared libraries that files need, by the names that the loader looks for."""
    found: dict[str, Path] = {}
    for file in files:
        listed = subprocess.run(
            [str(loader), "--list", str(file)], stdout=subprocess.PIPE, check=True, timeout=60
        )
        for line in os.fsdecode(listed.stdout).splitlines():
            name, arrow, rest = line.strip().partition(" => ")
            if not arrow or "/" in name:
                continue
            if rest.startswith("not found"):
                raise InterpreterUnusable(f"{file} needs {name}", file=str(file), library=name)
            found[name] = Path(rest.rpartition(" (")[0])
    found.pop(loader.name, None)
    return found


def _digest(tree: Path) -> str:
    total = hashlib.sha256()
    for path in sorted(path for path in tree.rglob("*") if path.is_file()):
        content = hashlib.sha256(path.read_bytes()).hexdigest()
        total.update(f"{path.relative_to(tree)} {content}\n".encode())
    return total.hexdigest()[:24]
