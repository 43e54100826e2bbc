"""The interpreter bundle: complete, content-addressed, and the same whoever collects it."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from container_runtime.interpreter import (
    Bundle,
    InterpreterUnusable,
    collect,
    supervisor_command,
    supervisor_environment,
    supervisor_mounts,
)

INTERPRETERS = [Path(sys.executable), Path("/usr/bin/python3.11")]


def own(bundle: Bundle, program: str) -> str:
    """What a program says that runs in the bundle, with nothing else of the machine in reach."""
    command = [*supervisor_command(bundle, root=str(bundle.directory))[:-1], program]
    said = subprocess.run(command, env={}, stdout=subprocess.PIPE, check=True, timeout=20)
    return said.stdout.decode().strip()


@pytest.mark.parametrize(
    "executable", [path for path in INTERPRETERS if path.exists()], ids=["own", "system"]
)
def test_bundle_runs_by_itself(tmp_path: Path, executable: Path) -> None:
    bundle = collect(tmp_path, executable=executable)
    root = str(bundle.directory)
    program = (
        "import sys, agent.main, agent.archive;"
        "print([m.__file__ for m in sys.modules.values() if getattr(m, '__file__', None)"
        f" and not m.__file__.startswith({root!r})])"
    )
    assert own(bundle, program) == "[]"
    maps = own(bundle, "import ctypes; print(open('/proc/self/maps').read())")
    outside = {line.split()[-1] for line in maps.splitlines() if ".so" in line or "python" in line}
    assert all(path.startswith(root) for path in outside), outside


def test_bundle_is_named_by_its_content_and_made_once(tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as threads:
        bundles = list(threads.map(lambda _: collect(tmp_path), range(4)))
    assert len(set(bundles)) == 1
    assert [path.name for path in tmp_path.iterdir()] == [bundles[0].directory.name]


def test_everybody_may_read_the_bundle_whatever_the_umask(tmp_path: Path) -> None:
    bundle = collect(tmp_path)
    for path in [bundle.directory, *bundle.directory.rglob("*")]:
        assert path.stat().st_mode & 0o444 == 0o444
        assert path.stat().st_mode & 0o022 == 0


def test_what_is_no_interpreter_is_refused(tmp_path: Path) -> None:
    script = tmp_path / "python"
    script.write_text("#!/bin/sh\n")
    with pytest.raises(InterpreterUnusable):
        collect(tmp_path / "state", executable=script)


def test_mounts_and_command_name_the_same_places(tmp_path: Path) -> None:
    bundle = Bundle(tmp_path / "python-0", "ld.so")
    mounts = supervisor_mounts(bundle, tmp_path / "link")
    command = supervisor_command(bundle)
    assert command[0] == f"{mounts[0].target}/lib/ld.so"
    assert f"{mounts[1].target}/host.sock" in command[-1]
    assert mounts[0].source == tmp_path / "python-0"


def test_variables_that_the_loader_obeys_are_kept_from_the_supervisor() -> None:
    image = {"LD_PRELOAD": "/x.so", "GLIBC_TUNABLES": "a=b", "PATH": "/bin"}
    assert supervisor_environment(image) == {
        "LD_PRELOAD": "",
        "WORKROOM_HELD_LD_PRELOAD": "/x.so",
        "GLIBC_TUNABLES": "",
        "WORKROOM_HELD_GLIBC_TUNABLES": "a=b",
    }
