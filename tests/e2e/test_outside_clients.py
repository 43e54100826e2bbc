"""Programs that are not ours drive it: `grpcurl` by the README's lines, and the Go client."""

import asyncio
import os
import re
import shutil
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.clients.test_contracts import build_go_client
from tests.e2e.place import ROOT, Done, Place, ended
from workroom.rpc.channel import open_channel
from workroom.runtime.v1 import containers_pb2, containers_pb2_grpc

pytestmark = [pytest.mark.docker, pytest.mark.slow, pytest.mark.timeout(600)]

BLOCK = re.compile(r"<!-- a session with grpcurl: run by the tests -->\n```\n(.*?)```", re.DOTALL)
DEFAULT_ADDRESS = "127.0.0.1:7410"


def needs(program: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(shutil.which(program) is None, reason=f"no {program} here")


async def shell(place: Place, text: str, folder: Path) -> Done:
    """Runs lines as they would be pasted, with `workroom` on the PATH."""
    workroom = folder / "workroom"
    workroom.write_text(f'#!/bin/sh\nexec {sys.executable} -m workroom.cli "$@"\n')
    workroom.chmod(0o755)
    process = await asyncio.create_subprocess_exec(
        *("bash", "-euo", "pipefail", "-c", text),
        cwd=folder,
        env=place.environ | {"PATH": f"{folder}:{os.environ['PATH']}"},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    return await ended(process)


@needs("grpcurl")
@needs("jq")
async def test_the_readmes_lines_drive_a_session_with_grpcurl(up, tmp_path):
    (lines,) = BLOCK.findall((ROOT / "README.md").read_text())
    assert lines.count(DEFAULT_ADDRESS) == 1
    lines = lines.replace(DEFAULT_ADDRESS, up.tcp_address())
    done = await shell(up, lines, tmp_path)
    assert done.code == 0, done.err
    for text in ('"session_idle"', '"command_output_delta"', '"text": "Linux"', '"exit_code": 0'):
        assert text in done.out
    for method in ("CreateSession", "WatchEvents", "ListItems", "DeleteSession"):
        assert method in lines


@needs("grpcurl")
async def test_grpcurl_without_a_key_may_look_and_nothing_else(up, tmp_path):
    service = "workroom.orchestrator.v1.SessionService"
    looked = await shell(up, f"grpcurl -plaintext {up.tcp_address()} list", tmp_path)
    assert looked.code == 0 and service in looked.out.splitlines()
    call = f"grpcurl -plaintext -d '{{}}' {up.tcp_address()} {service}/ListSessions"
    refused = await shell(up, call, tmp_path)
    assert refused.code != 0 and "Unauthenticated" in refused.err


@asynccontextmanager
async def container_of(place: Place):
    """A container of the running installation's runtime."""
    async with open_channel(f"unix:{place.socket('runtime')}") as channel:
        containers = containers_pb2_grpc.ContainerServiceStub(channel)
        request = containers_pb2.CreateContainerRequest(size=containers_pb2.Container.SIZE_SMALL)
        container = (await containers.CreateContainer(request, timeout=60)).container
        try:
            yield container.id
        finally:
            deletion = containers_pb2.DeleteContainerRequest(container_id=container.id)
            await containers.DeleteContainer(deletion, timeout=60)


@needs("go")
async def test_the_go_client_starts_a_command_and_reads_its_stream(up, tmp_path):
    program = await asyncio.to_thread(build_go_client, tmp_path)
    script = "seq 1 200000; echo 'from go' >&2; exit 7"
    async with container_of(up) as container_id:
        process = await asyncio.create_subprocess_exec(
            *(program, f"unix:{up.socket('runtime')}", container_id, script),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        done = await ended(process)
    assert done.code == 7, done.err
    assert done.err == "from go\n"
    assert done.out == "".join(f"{n}\n" for n in range(1, 200_001))
