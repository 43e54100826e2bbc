"""An orchestrator that is killed at any moment leaves a turn that ends as if nothing had been."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.orchestrator.service.conftest import Peers, container, items, scripted
from tests.orchestrator.service.process import Process
from workroom.orchestrator.v1 import events_pb2, turns_pb2
from workroom.orchestrator.v1 import sessions_pb2 as pb

pytestmark = pytest.mark.timeout(90)

SCRIPT = r"""
script: steps
turns:
  - steps:
      - say: First I look.
        calls:
          - name: shell
            arguments:
              commands:
                - command: >-
                    echo a >> /workspace/log; for i in 1 2 3 4 5 6; do echo $i; sleep 0.1; done
                - command: "echo b >> /workspace/log; echo quick"
      - calls:
          - name: shell
            arguments:
              commands: [{command: "sort /workspace/log | tee /workspace/outputs/result"}]
      - answer: "Found {{ find: '(?m)^[ab]$', in: step 2 }} and the rest."
"""

BOUNDARIES = {
    "turn created": lambda e: e.HasField("turn_created"),
    "environment ready": lambda e: e.HasField("environment_ready"),
    "commands asked for": lambda e: (
        e.HasField("item_added") and e.item_added.item.id.startswith("cmd_")
    ),
    "command's output": lambda e: e.HasField("command_output_delta"),
    "one command done": lambda e: (
        e.HasField("item_done") and e.item_done.item.id.startswith("cmd_")
    ),
    "answer begun": lambda e: (
        e.HasField("item_added") and e.item_added.item.message.role == 2
        and e.sequence_number > 12
    ),
    "answer done": lambda e: (
        e.HasField("item_done") and e.item_done.item.message.phase == 2
    ),
    "artifact published": lambda e: e.HasField("artifact_published"),
}  # fmt: skip


@pytest.fixture
async def process(peers: Peers) -> AsyncIterator[Process]:
    process = Process(peers)
    await process.start()
    try:
        yield process
    finally:
        await process.kill()


async def create(process: Process) -> str:
    async with process.client() as client:
        return (await client.sessions.CreateSession(scripted(SCRIPT))).session.id


async def watch(process: Process, session_id: str, after: int) -> AsyncIterator[events_pb2.Event]:
    async with process.client() as client:
        request = pb.WatchEventsRequest(
            session_id=session_id, after_sequence_number=after, until_idle=True
        )
        async for response in client.sessions.WatchEvents(request):
            yield response.event


async def outcome(process: Process, session_id: str) -> list[tuple[object, ...]]:
    """What the session's items and artifacts say, without what differs from run to run."""
    async with process.client() as client:
        told = [_told(item) for item in await items(client, session_id)]
        published = [(a.path, a.size_bytes, a.sha256) async for a in client.artifacts(session_id)]
    return [*told, *published]


def _told(item: turns_pb2.Item) -> tuple[object, ...]:
    command = item.command_execution
    return (
        item.state,
        item.id.partition("_")[0],
        [part.text for part in item.message.content],
        item.message.phase,
        command.command,
        command.WhichOneof("outcome"),
        command.exit_code,
        command.stdout,
        command.stderr,
    )


def check(peers: Peers, told: list[tuple[object, ...]], events: list[events_pb2.Event]) -> None:
    assert told[-1][0] == "/workspace/outputs/result"
    assert told[-2][2] == ["Found a and the rest."]
    assert told[2][7] == "1\n2\n3\n4\n5\n6\n"
    assert container(peers).joinpath("workspace/outputs/result").read_text() == "a\nb\n"
    assert len(peers.runtime.starts) == len(set(peers.runtime.starts)) == 3
    numbers = [event.sequence_number for event in events if event.sequence_number]
    assert numbers == list(range(1, len(numbers) + 1))
    finals = [e for e in events if e.HasField("turn_completed") or e.HasField("turn_failed")]
    assert len(finals) == 1
    done = [e.item_done.item.id for e in events if e.HasField("item_done")]
    assert len(done) == len(set(done)) == 5


SAMPLE = ("environment ready", "command's output", "answer begun")
"""Where the quick tests kill; the long ones do it everywhere."""


@pytest.mark.parametrize(
    "boundary",
    [pytest.param(name, marks=() if name in SAMPLE else pytest.mark.slow) for name in BOUNDARIES],
)
async def test_a_turn_ends_as_if_nothing_had_been(process: Process, peers: Peers, boundary: str):
    session_id = await create(process)
    seen = []
    async for event in watch(process, session_id, 0):
        seen.append(event)
        if BOUNDARIES[boundary](event):
            await process.kill()
            break
    else:
        pytest.fail(f"never came to {boundary}")
    await process.start()
    last = max(event.sequence_number for event in seen)
    seen += [event async for event in watch(process, session_id, last)]
    check(peers, await outcome(process, session_id), seen)


@pytest.mark.slow
@pytest.mark.timeout(180)
async def test_a_turn_survives_a_kill_after_each_event(process: Process, peers: Peers):
    session_id = await create(process)
    seen: list[events_pb2.Event] = []
    idle = False
    while not idle:
        last = max((event.sequence_number for event in seen), default=0)
        async for event in watch(process, session_id, last):
            if event.sequence_number:
                seen.append(event)
                idle = event.HasField("session_idle")
                break
        await process.kill()
        await process.start()
    check(peers, await outcome(process, session_id), seen)


async def test_a_cancellation_that_was_cut_off_is_finished(process: Process, peers: Peers):
    async with process.client() as client:
        created = await client.sessions.CreateSession(scripted(SCRIPT))
        session_id = created.session.id
    async for event in watch(process, session_id, 0):
        if event.HasField("command_output_delta"):
            break
    async with process.client() as client:
        cancelling = client.sessions.CancelTurn(pb.CancelTurnRequest(session_id=session_id))
        await asyncio.wait([asyncio.ensure_future(cancelling.wait_for_connection())])
        await process.kill()
    await process.start()
    events = [event async for event in watch(process, session_id, 0)]
    assert events[-1].HasField("session_idle")
    async with process.client() as client:
        assert all(
            item.state != turns_pb2.Item.STATE_IN_PROGRESS
            for item in await items(client, session_id)
        )
