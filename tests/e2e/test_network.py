"""A container is let out to what was allowed, and it can be seen afterwards who went where."""

import asyncio
import json
import os
import signal
import socket
from typing import Any

import pytest

from tests.e2e.place import Place, new_place, script
from tests.e2e.place import until as eventually
from tests.egress_proxy.node import Upstream

pytestmark = [pytest.mark.docker, pytest.mark.timeout(180)]

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\nlet out\n"
FETCH = """
script: fetch
steps:
  - calls:
      - name: shell
        arguments:
          commands:
            - command: curl -sS -m 10 http://{name}:{port}/
            - command: curl -sS -m 10 http://elsewhere.example:{port}/ 2>&1
            - command: curl -sS -m 10 --resolve elsewhere.example:80:1.2.3.4 http://elsewhere.example/
  - answer: |
      {{{{ each: '^(let out|.*resolve.*|.*reached.*)$', in: step 1 }}}}
"""


@pytest.fixture
async def open_place():
    """A place where this machine's own name may be reached, and a server there."""
    name = socket.gethostname()
    address = socket.gethostbyname(name)
    async with new_place() as place, Upstream(ANSWER).serving(0, address) as upstream:
        place.environ["EGRESS_EXCEPTIONS"] = f"{name}:{upstream.port}={address}/32"
        await place.up()
        yield place, name, upstream


async def run(place: Place, name: str, port: int, *words: str):
    path = script(place, FETCH.format(name=name, port=port))
    return await place.workroom("run", "fetch it", "--script", path, "--json", *words)


async def records(place: Place, *words: str) -> list[dict[str, Any]]:
    done = await place.workroom("traffic", "--json", *words)
    assert done.code == 0, done.err
    return [json.loads(line) for line in done.out.splitlines()]


async def test_a_command_reaches_what_was_allowed_and_nothing_else(open_place):
    place, name, upstream = open_place
    done = await run(place, name, upstream.port, "--allow", f"{name}:{upstream.port}")
    assert done.code == 0, done.err
    answer = done.result["answer"]
    assert "let out" in answer and "not_allowed" in answer and "resolve host" in answer
    assert upstream.connections == 1
    session = done.result["sessionId"]
    found = await records(place, session)
    assert {(each["host"], each["decision"]["effect"]) for each in found} == {
        (name, "EFFECT_ALLOW"),
        ("elsewhere.example", "EFFECT_DENY"),
    }
    denied = await place.workroom("traffic", session, "--denied")
    assert "denied" in denied.out and "not_allowed" in denied.out


async def test_without_being_allowed_nothing_is_reached(open_place):
    place, name, upstream = open_place
    done = await run(place, name, upstream.port)
    assert done.code == 0, done.err
    assert "let out" not in done.result["answer"]
    assert upstream.connections == 0
    assert await records(place) == []


async def test_what_no_policy_can_mean_is_refused_by_its_field(open_place):
    place, name, upstream = open_place
    done = await run(place, name, upstream.port, "--allow", "https://a.example/")
    assert done.code == 1
    assert "environment.network.allowed_domains[0]" in done.err and "URL" in done.err


async def test_containers_work_again_when_the_proxy_was_killed(open_place):
    place, name, upstream = open_place
    text = """
script: twice
steps:
  - calls:
      - name: shell
        arguments: {commands: [{command: 'curl -sS -m 10 http://NAME:PORT/; echo first'}]}
  - calls:
      - name: shell
        arguments: {commands: [{command: 'sleep 6; curl -sS -m 20 http://NAME:PORT/; echo second'}]}
  - answer: done
""".replace("NAME", name).replace("PORT", str(upstream.port))
    path = script(place, text)
    words = ("run", "twice", "--script", path, "--allow", f"{name}:{upstream.port}")
    process = await place.start(*words)

    async def first() -> bool:
        return upstream.connections == 1

    await eventually(first)
    before = place.service_pid("egress_proxy")
    os.kill(before, signal.SIGKILL)

    async def second() -> bool:
        return upstream.connections == 2

    await eventually(second)
    out, err = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 0, err
    assert place.service_pid("egress_proxy") != before
