"""What a turn does, seen by a client over the socket."""

from datetime import timedelta

import pytest

from tests.orchestrator.fakes import ModelServer
from tests.orchestrator.service.conftest import (
    Peers,
    calls,
    container,
    heard,
    items,
    kinds,
    scripted,
    submit,
)
from workroom.client import Client
from workroom.errors import WorkroomError
from workroom.orchestrator.v1 import sessions_pb2 as pb
from workroom.orchestrator.v1 import turns_pb2
from workroom.rpc.channel import translate_errors

WORKING = r"""
script: working
turns:
  - steps:
      - say: I look.
        calls:
          - name: shell
            arguments:
              commands:
                - command: "echo one; echo two >&2; exit 3"
                - command: "printf hi > /workspace/outputs/a.txt"
      - answer: Done.
"""


async def test_a_turn_is_told_from_its_input_to_its_artifacts(client: Client):
    created = await client.sessions.CreateSession(scripted(WORKING))
    events = await heard(client, created.session.id)
    assert [event.sequence_number for event in events if event.sequence_number] == list(
        range(1, 19)
    )
    durable = kinds([event for event in events if event.sequence_number])
    assert durable == [
        "session_created",
        "environment_pending",
        "turn_created",
        "item_added",
        "session_in_progress",
        "turn_in_progress",
        "environment_ready",
        "item_added",
        "item_done",
        "item_added",
        "item_added",
        "item_done",
        "item_done",
        "item_added",
        "item_done",
        "artifact_published",
        "turn_completed",
        "session_idle",
    ]
    deltas = [e.command_output_delta for e in events if e.HasField("command_output_delta")]
    assert [(d.delta, d.is_stderr) for d in deltas] == [("one\n", False), ("two\n", True)]
    texts = [e.output_text_delta.delta for e in events if e.HasField("output_text_delta")]
    assert "".join(texts) == "I look.Done."


async def test_items_say_what_was_run_and_how_it_ended(client: Client):
    created = await client.sessions.CreateSession(scripted(WORKING))
    await heard(client, created.session.id)
    user, said, first, second, answer = await items(client, created.session.id)
    assert user.message.role == turns_pb2.Message.ROLE_USER
    assert said.message.phase == turns_pb2.Message.PHASE_COMMENTARY
    assert first.state == turns_pb2.Item.STATE_FAILED
    assert first.command_execution.exit_code == 3
    assert first.command_execution.stdout == "one\n"
    assert first.command_execution.stderr == "two\n"
    assert first.command_execution.call_id == second.command_execution.call_id
    assert second.state == turns_pb2.Item.STATE_COMPLETED
    assert answer.message.phase == turns_pb2.Message.PHASE_FINAL_ANSWER
    assert answer.message.content[0].text == "Done."


async def test_usage_is_final_when_the_turn_has_ended(client: Client):
    created = await client.sessions.CreateSession(scripted(WORKING))
    events = await heard(client, created.session.id)
    ended = next(e.turn_completed.turn for e in events if e.HasField("turn_completed"))
    session = (
        await client.sessions.GetSession(pb.GetSessionRequest(session_id=created.session.id))
    ).session
    assert ended.usage.model_calls == 2
    assert ended.usage.agent.input_tokens > 0
    assert session.usage == ended.usage
    assert session.state == pb.Session.STATE_IDLE


async def test_an_artifact_is_published_again_only_when_it_changed(client: Client):
    script = r"""
script: outputs
turns:
  - when: same
    steps:
      - calls: [{name: shell, arguments: {commands: [{command: "printf hi > outputs/a.txt"}]}}]
      - answer: Same.
  - when: other
    steps:
      - calls: [{name: shell, arguments: {commands: [{command: "printf ho > outputs/a.txt"}]}}]
      - answer: Other.
"""
    created = await client.sessions.CreateSession(scripted(script, "same"))
    session_id = created.session.id
    await heard(client, session_id)
    for text in ("same", "other"):
        request = pb.SubmitInputRequest(session_id=session_id)
        request.input.add(text=text)
        await client.sessions.SubmitInput(request)
        await heard(client, session_id)
    published = [artifact async for artifact in client.artifacts(session_id)]
    assert [artifact.path for artifact in published] == ["/workspace/outputs/a.txt"] * 2
    assert published[0].sha256 != published[1].sha256
    read = client.sessions.ReadArtifact(pb.ReadArtifactRequest(artifact_id=published[0].id))
    parts = [part async for part in read]
    assert b"".join(part.data for part in parts) == b"hi"
    assert [part.end for part in parts] == [False, True]


async def test_output_of_one_command_is_seen_before_another_ends(client: Client, peers: Peers):
    script = calls("while [ ! -e /workspace/go ]; do sleep 0.02; done; echo late", "echo early")
    created = await client.sessions.CreateSession(scripted(script))
    told = []
    async for event in client.events(created.session.id, until_idle=True):
        if event.HasField("command_output_delta"):
            told.append(event.command_output_delta.delta)
            if told == ["early\n"]:
                container(peers).joinpath("workspace/go").touch()
    assert told == ["early\n", "late\n"]


async def test_a_refused_command_is_a_failed_result_and_the_turn_goes_on(
    client: Client, peers: Peers
):
    created = await client.sessions.CreateSession(scripted(calls("forbidden thing", "echo ok")))
    events = await heard(client, created.session.id)
    assert kinds(events)[-2:] == ["turn_completed", "session_idle"]
    _, refused, allowed, _ = await items(client, created.session.id)
    assert refused.state == turns_pb2.Item.STATE_FAILED
    assert refused.command_execution.ended == "refused before it ran: it says forbidden"
    assert refused.command_execution.execution_id == ""
    assert refused.command_execution.decision_id
    assert allowed.command_execution.exit_code == 0
    assert len(peers.runtime.starts) == 1


async def test_calls_that_cannot_be_read_are_told_to_the_model(client: Client):
    script = r"""
script: wrong
turns:
  - steps:
      - calls:
          - {name: shell, arguments: {command: ls}}
          - {name: browse, arguments: {url: x}}
      - answer: I was wrong.
"""
    created = await client.sessions.CreateSession(scripted(script))
    await heard(client, created.session.id)
    _, unreadable, unknown, answer = await items(client, created.session.id)
    assert "command: unknown" in unreadable.function_call.output
    assert unknown.function_call.name == "browse"
    assert unknown.state == turns_pb2.Item.STATE_FAILED
    assert answer.message.content[0].text == "I was wrong."


async def test_a_command_that_outlasts_its_yield_time_is_given_back_running(client: Client):
    script = calls("echo begun; sleep 20", fields="yield_time_ms: 300")
    created = await client.sessions.CreateSession(scripted(script))
    await heard(client, created.session.id)
    _, command, _ = await items(client, created.session.id)
    assert command.state == turns_pb2.Item.STATE_COMPLETED
    assert command.command_execution.ended.startswith("still running")
    assert command.command_execution.stdout == "begun\n"
    await client.sessions.DeleteSession(pb.DeleteSessionRequest(session_id=created.session.id))


async def test_a_script_without_a_step_fails_the_turn_and_not_the_session(client: Client):
    script = "script: short\nturns:\n  - when: go\n    steps: [{answer: Yes.}]\n"
    created = await client.sessions.CreateSession(scripted(script, "nothing fits"))
    events = await heard(client, created.session.id)
    failed = next(e.turn_failed.turn for e in events if e.HasField("turn_failed"))
    assert failed.error.code == "script_error"
    await _answers(client, created.session.id)


async def test_too_many_steps_fail_the_turn(peers: Peers):
    endless = "script: e\nturns:\n  - steps:\n" + "".join(
        f"      - calls: [{{name: shell, arguments: {{commands: [{{command: 'echo {n}'}}]}}}}]\n"
        for n in range(5)
    )
    endless += "      - answer: At last.\n"
    async with peers.orchestrator(max_steps=3) as (_, client):
        created = await client.sessions.CreateSession(scripted(endless))
        events = await heard(client, created.session.id)
        failed = next(e.turn_failed.turn for e in events if e.HasField("turn_failed"))
        assert failed.error.code == "step_limit_exceeded"
        assert failed.usage.model_calls == 3


async def test_a_turn_that_takes_too_long_fails(peers: Peers):
    async with peers.orchestrator(max_turn_time=timedelta(seconds=1)) as (_, client):
        created = await client.sessions.CreateSession(scripted(calls("sleep 20")))
        events = await heard(client, created.session.id)
        failed = next(e.turn_failed.turn for e in events if e.HasField("turn_failed"))
        assert failed.error.code == "request_timeout"
        _, command = await items(client, created.session.id)
        assert command.state == turns_pb2.Item.STATE_INCOMPLETE
        assert all(execution.outcome is not None for execution in peers.runtime.executions.values())


@pytest.mark.parametrize(
    ("status", "code"),
    [(401, "authentication_error"), (400, "invalid_request")],
)
async def test_errors_of_the_model_server_fail_the_turn_and_the_session_goes_on(
    peers: Peers, status: int, code: str
):
    async with ModelServer().serving() as server:
        server.may_answer.set()
        server.answers = [status, "Better now."]
        settings = {"model_base_url": server.address, "model": "m"}
        async with peers.orchestrator(**settings) as (_, client):
            request = pb.CreateSessionRequest()
            request.input.add(text="go")
            created = await client.sessions.CreateSession(request)
            events = await heard(client, created.session.id)
            failed = next(e.turn_failed.turn for e in events if e.HasField("turn_failed"))
            assert failed.error.code == code
            assert failed.error.message
            await _answers(client, created.session.id)
            answer = (await items(client, created.session.id))[-1]
            assert answer.message.content[0].text == "Better now."


async def test_the_calls_of_one_answer_go_back_together_and_their_results_after_them(peers: Peers):
    async with ModelServer().serving() as server:
        server.may_answer.set()
        server.answers = [["echo first", "echo second"], "Done."]
        settings = {"model_base_url": server.address, "model": "m"}
        async with peers.orchestrator(**settings) as (_, client):
            request = pb.CreateSessionRequest()
            request.input.add(text="go")
            created = await client.sessions.CreateSession(request)
            events = await heard(client, created.session.id)
            assert kinds(events)[-2:] == ["turn_completed", "session_idle"]
    _, told = server.heard
    assert [(item["type"], item.get("call_id")) for item in told["input"][-4:]] == [
        ("function_call", "call_1"),
        ("function_call", "call_2"),
        ("function_call_output", "call_1"),
        ("function_call_output", "call_2"),
    ]
    assert ["first" in told["input"][-2]["output"], "second" in told["input"][-1]["output"]] == [
        True,
        True,
    ]


async def test_a_runtime_that_cannot_make_the_container_fails_the_session(peers: Peers):
    async with peers.orchestrator() as (_, client):
        request = scripted(WORKING)
        request.environment.image = "registry.test/no/such"
        peers.runtime.refuse_images.add("registry.test/no/such")
        created = await client.sessions.CreateSession(request)
        events = await heard(client, created.session.id)
        assert kinds(events)[-3:] == ["environment_failed", "turn_failed", "session_failed"]
        failed = next(e.turn_failed.turn for e in events if e.HasField("turn_failed"))
        assert failed.error.code == "sandbox_error"
        assert "name an image" in failed.error.message


async def test_a_container_that_is_gone_fails_the_session_and_says_so(client: Client, peers: Peers):
    created = await client.sessions.CreateSession(scripted(calls("true")))
    session_id = created.session.id
    before = await heard(client, session_id)
    peers.runtime.containers.clear()
    await submit(client, session_id)
    events = await heard(client, session_id, before[-1].sequence_number)
    assert kinds(events)[-4:] == [
        "environment_expired",
        "item_done",
        "turn_failed",
        "session_failed",
    ]
    with pytest.raises(WorkroomError) as raised, translate_errors():
        await submit(client, session_id)
    assert raised.value.reason == "SESSION_FAILED"
    assert "container is gone" in raised.value.message


async def _answers(client: Client, session_id: str) -> None:
    """The session takes input again and answers it."""
    before = (await client.sessions.GetSession(pb.GetSessionRequest(session_id=session_id))).session
    request = pb.SubmitInputRequest(session_id=session_id)
    request.input.add(text="go")
    await client.sessions.SubmitInput(request)
    events = await heard(client, session_id, before.last_sequence_number)
    assert kinds(events)[-2:] == ["turn_completed", "session_idle"]
