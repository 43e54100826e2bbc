"""The rules of who may import what, read off the source of every package."""

import ast
import fnmatch
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SERVICES = ("orchestrator", "container_runtime", "reviewer", "egress_proxy")
PACKAGES = ("workroom", *SERVICES)
AGENT = "container_runtime/agent/"

EDGES = (
    "*/__main__.py",
    "*/composition.py",
    "*/servicers/*.py",
    "*/servicer.py",
    # where the orchestrator calls the other services
    "orchestrator/environments/*.py",
    "orchestrator/tools/*.py",
    "orchestrator/reviews.py",
    "orchestrator/runtime_errors.py",
)
"""Modules that turn messages into the domain's own values and back; no other one speaks gRPC."""

ONLY_IMPORTERS = {
    "aiodocker": ("container_runtime/docker.py", "container_runtime/docker/*.py"),
    "tree_sitter": ("reviewer/*.py",),
    "click": ("workroom/cli/*.py",),
}
"""Libraries that one part alone may know, so that it can be exchanged."""


@cache
def sources() -> dict[str, ast.Module]:
    """Every module of the packages that is written by hand, by its path."""
    return {
        path.relative_to(ROOT).as_posix(): ast.parse(path.read_bytes())
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"))
        if not path.match("workroom/*/v1/*.py")
    }


def imports(path: str) -> Iterator[str]:
    """Full names of the modules that the module imports, wherever in it."""
    package = Path(path).parent.parts
    for node in ast.walk(sources()[path]):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join((*above, node.module or "")).rstrip(".")
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names)


def top_level(path: str) -> set[str]:
    return {name.split(".")[0] for name in imports(path)}


def matches(path: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch.fnmatch(path, pattern) for pattern in patterns)


def speaks_grpc(path: str) -> bool:
    """Whether the module uses messages, stubs, or more of grpc than the codes of its errors."""
    if any("_pb2" in name or name.startswith("grpc.") for name in imports(path)):
        return True
    return any(
        isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "grpc"
        and node.attr != "StatusCode"
        for node in ast.walk(sources()[path])
    )


def test_there_is_something_to_check():
    for package in PACKAGES:
        assert any(path.startswith(f"{package}/") for path in sources()), package


def test_shared_package_imports_no_service():
    wrong = {path for path in sources() if path.startswith("workroom/")}
    assert not {path for path in wrong if top_level(path) & set(SERVICES)}


@pytest.mark.parametrize("service", SERVICES)
def test_service_imports_no_other_service(service):
    others = set(SERVICES) - {service}
    own = [path for path in sources() if path.startswith(f"{service}/")]
    assert not {path for path in own if top_level(path) & others}


def test_no_package_imports_the_tests():
    assert not {path for path in sources() if "tests" in top_level(path)}


def test_only_the_edges_of_a_service_speak_grpc():
    domain = [path for path in sources() if path.split("/")[0] in SERVICES]
    assert not {path for path in domain if speaks_grpc(path) and not matches(path, EDGES)}


def test_supervisor_imports_the_standard_library_alone():
    allowed = set(sys.stdlib_module_names)
    for path in (path for path in sources() if path.startswith(AGENT)):
        for name in imports(path):
            inside = name == "container_runtime.agent" or name.startswith(
                "container_runtime.agent."
            )
            assert inside or name.split(".")[0] in allowed, f"{path} imports {name}"


@pytest.mark.parametrize("library", ONLY_IMPORTERS)
def test_library_is_known_to_one_part_alone(library):
    importers = {path for path in sources() if library in top_level(path)}
    assert not {path for path in importers if not matches(path, ONLY_IMPORTERS[library])}


def test_status_codes_become_errors_in_the_shared_package_alone():
    aborting = {
        path
        for path, tree in sources().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr in ("abort", "abort_with_status")
        if isinstance(node.value, ast.Name) and node.value.id == "context"
    }
    assert aborting <= {"workroom/rpc/interceptors.py"}


def test_relative_imports_are_understood():
    tree = ast.parse("from . import a\nfrom .b import c\nfrom ..d import e")
    sources()["x/y/z.py"] = tree
    try:
        found = set(imports("x/y/z.py"))
    finally:
        del sources()["x/y/z.py"]
    assert found == {"x.y", "x.y.a", "x.y.b", "x.y.b.c", "x.d", "x.d.e"}
