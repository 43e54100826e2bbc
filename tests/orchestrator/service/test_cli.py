"""`workroom agents` and `workroom sessions` as a person and a program use them."""

import asyncio
import json
import os
import sys

import pytest

from tests.orchestrator.service.conftest import Peers, calls
from workroom.client import Client

pytestmark = pytest.mark.timeout(90)


@pytest.fixture
def database_url() -> str:
    return ""


class Cli:
    """The program against the orchestrator of the test."""

    def __init__(self, peers: Peers) -> None:
        self._environ = {**os.environ, "WORKROOM_HOME": str(peers.home().root)}

    async def __call__(self, *arguments: str, code: int = 0) -> str:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "workroom.cli",
            *arguments,
            env=self._environ,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await asyncio.wait_for(process.communicate(), 30)
        assert process.returncode == code, err.decode()
        return (err if code else out).decode()


async def test_a_session_from_its_agent_to_its_end(peers: Peers, client: Client):
    workroom = Cli(peers)
    script = peers.directory / "greet.yaml"
    script.write_text(calls("echo hello"))
    agent_id = (await workroom("agents", "create", "greeter", "--script", str(script))).strip()
    listed = await workroom("agents", "list")
    assert listed.splitlines()[0].split() == ["ID", "CHANGED", "MODEL", "NAME"]
    assert agent_id in listed and "scripted:greet" in listed and "greeter" in listed
    assert json.loads(await workroom("agents", "show", agent_id, "--json"))["name"] == "greeter"
    made = await workroom(
        "sessions", "create", "go", "--agent", agent_id, "--metadata", "team=a", "--json"
    )
    session_id = json.loads(made)["id"]
    watched = await workroom("sessions", "watch", session_id)
    assert "hello" in watched and "Done." in watched
    turn_id = (await workroom("sessions", "send", session_id, "again")).strip()
    events = [
        json.loads(line)
        for line in (await workroom("sessions", "watch", session_id, "--json")).splitlines()
    ]
    assert turn_id in {event.get("turnId") for event in events}
    assert session_id in await workroom("sessions", "list", "--metadata", "team=a")
    assert session_id not in await workroom("sessions", "list", "--agent", "agt_0")
    assert "metadata.team  a" in await workroom("sessions", "show", session_id)
    await workroom("sessions", "delete", session_id)
    await workroom("agents", "delete", agent_id)
    assert "SESSION_NOT_FOUND" not in await workroom("sessions", "list")
    refused = await workroom("sessions", "show", session_id, code=1)
    assert f"there is no session '{session_id}'" in refused and "Traceback" not in refused


async def test_what_runs_is_cancelled(peers: Peers, client: Client):
    workroom = Cli(peers)
    script = peers.directory / "wait.yaml"
    script.write_text(calls("sleep 600"))
    made = await workroom("sessions", "create", "go", "--script", str(script))
    session_id = made.strip()
    assert (await workroom("sessions", "cancel", session_id)).startswith("turn_")
    assert "idle" in await workroom("sessions", "show", session_id)


async def test_words_that_cannot_be_used_are_refused(peers: Peers, client: Client):
    workroom = Cli(peers)
    refused = await workroom("sessions", "list", "--metadata", "team", code=1)
    assert "'team' is not KEY=VALUE" in refused
    missing = await workroom("agents", "create", "x", "--script", "/nowhere.yaml", code=1)
    assert "/nowhere.yaml" in missing
