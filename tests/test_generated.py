"""The committed stubs are those that the contracts in `protos/` make."""

import sysconfig
from importlib.resources import files
from pathlib import Path

import pytest
from grpc_tools import protoc

ROOT = Path(__file__).parent.parent
PROTOS = ROOT / "protos"
KINDS = ("_pb2.py", "_pb2.pyi", "_pb2_grpc.py", "_pb2_grpc.pyi")


def stubs(root: Path) -> dict[str, bytes]:
    return {
        path.relative_to(root).as_posix(): path.read_bytes()
        for path in sorted((root / "workroom").rglob("*_pb2*.py*"))
        if path.name.endswith(KINDS)
    }


@pytest.fixture(scope="module")
def fresh(tmp_path_factory):
    """Stubs generated anew, by path."""
    folder = tmp_path_factory.mktemp("stubs")
    scripts = Path(sysconfig.get_path("scripts"))
    plugins = [f"--plugin={scripts / name}" for name in ("protoc-gen-mypy", "protoc-gen-mypy_grpc")]
    kinds = ("python", "mypy", "grpc_python", "mypy_grpc")
    failed = protoc.main(
        [
            "protoc",
            f"-I{PROTOS}",
            f"-I{files('grpc_tools') / '_proto'}",
            *plugins,
            *(f"--{kind}_out={folder}" for kind in kinds),
            *(str(path) for path in sorted(PROTOS.rglob("*.proto"))),
        ]
    )
    assert not failed
    return stubs(folder)


def test_each_contract_has_all_its_stubs(fresh):
    contracts = [path.relative_to(PROTOS).with_suffix("") for path in PROTOS.rglob("*.proto")]
    assert contracts
    assert set(fresh) == {f"{path.as_posix()}{kind}" for path in contracts for kind in KINDS}


def test_no_stub_is_missing_or_left_over(fresh):
    assert set(stubs(ROOT)) == set(fresh)


def test_stubs_are_what_the_contracts_make(fresh):
    committed = stubs(ROOT)
    assert [path for path in fresh if committed.get(path) != fresh[path]] == []


def test_every_folder_of_stubs_is_a_package(fresh):
    for path in fresh:
        assert (ROOT / path).with_name("__init__.py").is_file(), path
