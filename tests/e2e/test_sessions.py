"""A whole session from outside, over TCP with a key; and who is kept out."""

import asyncio
import base64
import json
import os
import socket
import stat
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import grpc
import pytest

from tests.e2e.place import Place
from tests.e2e.reflected import Reflected

pytestmark = [pytest.mark.docker, pytest.mark.timeout(90)]

SESSIONS = "workroom.orchestrator.v1.SessionService"
FILES = "workroom.orchestrator.v1.FileService"
KEYS = "workroom.orchestrator.v1.KeyService"
AGENTS = "workroom.orchestrator.v1.AgentService"
COUNT = """
script: count
turns:
  - when: sleep
    steps:
      - calls: [{name: shell, arguments: {commands: [{command: 'sleep 600'}]}}]
      - answer: slept
  - steps:
      - calls:
          - name: shell
            arguments:
              commands:
                - command: echo "lines $(wc -l < numbers.txt)" | tee outputs/lines.txt
      - answer: "{{ find: 'lines [0-9]+' }}"
"""


@contextmanager
def reflected(place: Place, key: str = "") -> Iterator[Reflected]:
    client = Reflected(place.tcp_address(), key)
    try:
        yield client
    finally:
        client.close()


@pytest.fixture(scope="module")
async def key(running: Place) -> AsyncIterator[str]:
    created = await running.workroom("keys", "create", "test")
    assert created.code == 0
    yield created.out.strip()


async def test_a_session_is_driven_over_tcp_with_nothing_but_a_key(up, key):
    with reflected(up, key) as client:
        await asyncio.to_thread(drive, client)


def drive(client: Reflected) -> None:
    numbers = base64.b64encode(b"1\n2\n3\n").decode()
    parts: list[dict[str, Any]] = [
        {"open": {"requestId": "u", "filename": "numbers.txt"}},
        {"data": numbers},
    ]
    (uploaded,) = client.stream(f"{FILES}/UploadFile", *parts)
    file_id = uploaded["file"]["id"]
    request = {
        "requestId": "one",
        "agent": {"provider": {"script": {"name": "count", "yaml": COUNT}}},
        "environment": {"files": [{"fileId": file_id, "path": "/workspace/numbers.txt"}]},
        "input": [{"text": "How many lines?"}],
    }
    created = client.call(f"{SESSIONS}/CreateSession", **request)
    session_id = created["session"]["id"]
    again = client.call(f"{SESSIONS}/CreateSession", **request)
    assert again["session"]["id"] == session_id and again["turnId"] == created["turnId"]

    watch = {"sessionId": session_id, "untilIdle": True}
    events = [answer["event"] for answer in client.stream(f"{SESSIONS}/WatchEvents", **watch)]
    durable = [int(event["sequenceNumber"]) for event in events if "sequenceNumber" in event]
    assert durable == list(range(1, len(durable) + 1))
    assert "sessionIdle" in events[-1]
    deltas = [e["commandOutputDelta"]["delta"] for e in events if "commandOutputDelta" in e]
    assert "".join(deltas) == "lines 3\n"
    resumed = client.stream(f"{SESSIONS}/WatchEvents", **watch, afterSequenceNumber=durable[-3])
    assert [int(answer["event"]["sequenceNumber"]) for answer in resumed] == durable[-2:]

    items = client.call(f"{SESSIONS}/ListItems", sessionId=session_id)["items"]
    assert items[-1]["message"]["content"] == [{"text": "lines 3"}]
    (turn,) = client.call(f"{SESSIONS}/ListTurns", sessionId=session_id)["turns"]
    assert turn["state"] == "STATE_COMPLETED" and turn["id"] == created["turnId"]
    (artifact,) = client.call(f"{SESSIONS}/ListArtifacts", sessionId=session_id)["artifacts"]
    assert artifact["path"] == "/workspace/outputs/lines.txt"
    content = client.stream(f"{SESSIONS}/ReadArtifact", artifactId=artifact["id"])
    assert b"".join(base64.b64decode(part.get("data", "")) for part in content) == b"lines 3\n"

    second = [{"text": "sleep"}]
    client.call(f"{SESSIONS}/SubmitInput", sessionId=session_id, requestId="two", input=second)
    follow = {"sessionId": session_id, "afterSequenceNumber": durable[-1]}
    for answer in client.stream(f"{SESSIONS}/WatchEvents", **follow):
        if "commandExecution" in answer["event"].get("itemAdded", {}).get("item", {}):
            break
    began = time.monotonic()
    (cancelled,) = client.call(f"{SESSIONS}/CancelTurn", sessionId=session_id)["turns"]
    assert cancelled["state"] == "STATE_CANCELLED" and time.monotonic() - began < 15
    client.call(f"{SESSIONS}/DeleteSession", sessionId=session_id)
    client.call(f"{FILES}/DeleteFile", fileId=file_id)
    assert client.refusal(f"{SESSIONS}/GetSession") is grpc.StatusCode.NOT_FOUND


async def test_without_a_key_everything_but_health_and_reflection_is_refused(up):
    with reflected(up) as client:
        refusals = await asyncio.to_thread(
            lambda: {method: client.refusal(method) for method in client.methods()}
        )
        assert {method.partition("/")[0] for method in refusals} == {
            SESSIONS,
            FILES,
            KEYS,
            AGENTS,
        }
        assert len(refusals) >= 25
        assert set(refusals.values()) == {grpc.StatusCode.UNAUTHENTICATED}, refusals
        health = await asyncio.to_thread(client.call, "grpc.health.v1.Health/Check")
        assert health == {"status": "SERVING"}


async def test_a_deleted_key_and_a_wrong_one_are_refused(up):
    key = (await up.workroom("keys", "create", "deleted soon")).out.strip()
    listed = [json.loads(x) for x in (await up.workroom("keys", "list", "--json")).out.splitlines()]
    (key_id,) = (each["id"] for each in listed if each["name"] == "deleted soon")
    method = f"{SESSIONS}/ListSessions"
    with reflected(up, key) as client:
        assert await asyncio.to_thread(client.refusal, method) is grpc.StatusCode.OK
        assert (await up.workroom("keys", "delete", key_id)).code == 0
        assert await asyncio.to_thread(client.refusal, method) is grpc.StatusCode.UNAUTHENTICATED
    with reflected(up, "wr_" + "0" * 40) as client:
        assert await asyncio.to_thread(client.refusal, method) is grpc.StatusCode.UNAUTHENTICATED


async def test_a_key_does_not_make_an_owner(up, key):
    with reflected(up, key) as client:
        refusals = await asyncio.to_thread(
            lambda: {m: client.refusal(m) for m in client.methods() if m.startswith(KEYS)}
        )
        assert set(refusals.values()) == {grpc.StatusCode.PERMISSION_DENIED}, refusals


KNOCK = """
import errno, os, socket, sys
path, uid = sys.argv[1], int(sys.argv[2])
os.setgroups([]); os.setgid(uid); os.setuid(uid)
with socket.socket(socket.AF_UNIX) as knocking:
    sys.exit(0 if knocking.connect_ex(path) == errno.EACCES else 1)
"""


@pytest.mark.parametrize("service", ["runtime", "egress", "reviewer", "orchestrator"])
def test_no_socket_is_open_to_another_user(running, service):
    path = running.socket(service)
    with socket.socket(socket.AF_UNIX) as ours:
        ours.connect(str(path))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    for folder in (path.parent, running.home):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    if os.geteuid() == 0:
        # Once more with the folders open: the socket itself keeps others out, too.
        opened = [folder for folder in (running.root, running.home, path.parent)]
        for folder in opened:
            folder.chmod(0o755)
        try:
            knock = [sys.executable, "-S", "-c", KNOCK, str(path), "65534"]
            assert subprocess.run(knock, check=False).returncode == 0
        finally:
            for folder in opened:
                folder.chmod(0o700)


async def test_the_runtime_listens_on_nothing_but_its_socket(up):
    pids = {module: up.service_pid(module) for module in ("container_runtime", "orchestrator")}
    listening = {module: tcp_listeners(pid) for module, pid in pids.items()}
    assert listening["container_runtime"] == set()
    assert listening["orchestrator"] == {int(up.tcp_address().rpartition(":")[2])}


def tcp_listeners(pid: int) -> set[int]:
    """The TCP ports that a process listens on."""
    inodes = set()
    for name in os.listdir(f"/proc/{pid}/fd"):
        with suppress(FileNotFoundError):  # closed meanwhile
            target = os.readlink(f"/proc/{pid}/fd/{name}")
            if target.startswith("socket:["):
                inodes.add(target[8:-1])
    ports = set()
    for table in ("tcp", "tcp6"):
        with open(f"/proc/{pid}/net/{table}") as rows:
            for row in list(rows)[1:]:
                fields = row.split()
                if fields[3] == "0A" and fields[9] in inodes:
                    ports.add(int(fields[1].rpartition(":")[2], 16))
    return ports
