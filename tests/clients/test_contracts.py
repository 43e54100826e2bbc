"""The contracts compile for Go, Java and TypeScript, where the toolchain is there."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
PROTOS = HERE.parents[1] / "protos"
BUF = Path(sys.executable).with_name("buf")
GO_PLUGINS = (
    "google.golang.org/protobuf/cmd/protoc-gen-go@v1.36.8",
    "google.golang.org/grpc/cmd/protoc-gen-go-grpc@v1.5.1",
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def needs(program: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(shutil.which(program) is None, reason=f"no {program} here")


def run(*command: str | Path, cwd: Path, **environment: str) -> None:
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def generate(cwd: Path, *plugins: dict[str, str], **environment: str) -> None:
    template = json.dumps({"version": "v2", "plugins": plugins})
    run(BUF, "generate", PROTOS, "--template", template, cwd=cwd, **environment)


def build_go_client(folder: Path) -> Path:
    """Generates the Go stubs beside the client's source in `folder` and builds the program."""
    tools = folder / "bin"
    source = folder / "client"
    shutil.copytree(HERE / "go", source)
    for plugin in GO_PLUGINS:
        run("go", "install", plugin, cwd=folder, GOBIN=str(tools))
    generate(
        source,
        {"local": "protoc-gen-go", "out": ".", "opt": "module=workroom"},
        {"local": "protoc-gen-go-grpc", "out": ".", "opt": "module=workroom"},
        PATH=f"{tools}:{os.environ['PATH']}",
    )
    run("go", "build", "./...", cwd=source)
    run("go", "build", "-o", "program", ".", cwd=source)
    return source / "program"


@needs("mvn")
def test_contracts_compile_for_java(tmp_path):
    project = tmp_path / "java"
    shutil.copytree(HERE / "java", project)
    run("mvn", "-q", "-B", "compile", f"-Dprotos={PROTOS}", cwd=project)
    stubs = {path.name for path in project.rglob("*Grpc.class")}
    assert {"ExecutionServiceGrpc.class", "SessionServiceGrpc.class"} <= stubs


@needs("npm")
def test_contracts_compile_for_typescript(tmp_path):
    project = tmp_path / "typescript"
    shutil.copytree(HERE / "typescript", project)
    run("npm", "ci", "--no-audit", "--no-fund", cwd=project)
    plugin = {
        "local": "node_modules/.bin/protoc-gen-es",
        "out": "gen",
        "opt": "target=ts,import_extension=js",
    }
    generate(project, plugin)
    run("npm", "run", "build", cwd=project)
