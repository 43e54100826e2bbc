"""What a turn does, seen by a client over the socket."""

import asyncio

from tests.orchestrator.service.conftest import Peers, scripted
from workroom.client import Client
from workroom.orchestrator.v1 import sessions_pb2 as pb
from workroom.orchestrator.v1 import turns_pb2

ECHO = r"""
script: echo
turns:
  - steps:
      - say: I look.
        calls:
          - name: shell
            arguments: {commands: [{command: "echo one; echo two >&2; exit 3"}, {command: "printf hi > /workspace/outputs/a.txt"}]}
      - answer: Done.
"""


async def test_a_turn_runs_its_commands_and_publishes_what_they_left(client: Client):
    created = await client.sessions.CreateSession(scripted(ECHO))
    events = [e async for e in client.events(created.session.id, until_idle=True)]
    for e in events: print(str(e).replace("\n", " ")[:300])
    assert False
