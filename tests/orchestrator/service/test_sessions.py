"""What callers may ask of sessions, and what they are refused."""

import pytest

from tests.orchestrator.service.conftest import (
    Peers,
    calls,
    container,
    heard,
    refusal,
    scripted,
    submit,
    until,
)
from workroom.client import Client
from workroom.orchestrator.v1 import agents_pb2, environments_pb2
from workroom.orchestrator.v1 import sessions_pb2 as pb

WAITING = "while [ ! -e /workspace/go ]; do sleep 0.02; done"


async def test_a_full_queue_says_so_and_takes_input_again_later(client: Client, peers: Peers):
    created = await client.sessions.CreateSession(scripted(calls(WAITING)))
    session_id = created.session.id
    await until(lambda: bool(peers.runtime.starts))
    for _ in range(16):
        await submit(client, session_id)
    error = await refusal(submit(client, session_id))
    assert error.reason == "QUEUE_FULL"
    assert error.metadata["limit"] == "16"
    container(peers).joinpath("workspace/go").touch()
    await heard(client, session_id)
    await submit(client, session_id)
    turns = await client.sessions.ListTurns(
        pb.ListTurnsRequest(session_id=session_id, page_size=100)
    )
    assert len(turns.turns) == 18


async def test_a_request_id_gives_the_same_session_again(client: Client):
    request = scripted(calls("true"), request_id="r1")
    first = await client.sessions.CreateSession(request)
    again = await client.sessions.CreateSession(request)
    assert (again.session.id, again.turn_id) == (first.session.id, first.turn_id)
    request.metadata["other"] = "yes"
    assert (await refusal(client.sessions.CreateSession(request))).reason == "REQUEST_ID_REUSED"


async def test_a_request_id_gives_the_same_turn_again(client: Client):
    created = await client.sessions.CreateSession(scripted(calls("true")))
    session_id = created.session.id
    first = await submit(client, session_id, "go", "r1")
    assert await submit(client, session_id, "go", "r1") == first
    error = await refusal(submit(client, session_id, "other", "r1"))
    assert error.reason == "REQUEST_ID_REUSED"


async def test_sessions_are_listed_by_page_and_by_metadata(client: Client):
    made = []
    for number in range(5):
        request = pb.CreateSessionRequest(metadata={"even": str(number % 2 == 0)})
        request.agent.provider.script.name = "t"
        request.agent.provider.script.yaml = calls("true")
        made.append((await client.sessions.CreateSession(request)).session.id)
    seen, token = [], ""
    while True:
        page = await client.sessions.ListSessions(
            pb.ListSessionsRequest(page_size=2, page_token=token)
        )
        seen += [session.id for session in page.sessions]
        token = page.next_page_token
        if not token:
            break
    assert seen == made[::-1]
    even = await client.sessions.ListSessions(pb.ListSessionsRequest(metadata={"even": "True"}))
    assert [session.id for session in even.sessions] == [made[4], made[2], made[0]]
    for wrong in (
        pb.ListSessionsRequest(page_size=-1),
        pb.ListSessionsRequest(page_token="nonsense"),
        pb.ListSessionsRequest(page_token="dHVybnM6MQ=="),
    ):
        assert (await refusal(client.sessions.ListSessions(wrong))).reason == "INVALID_FIELD"


async def test_what_does_not_exist_is_not_found(client: Client):
    calls = {
        "SESSION_NOT_FOUND": client.sessions.GetSession(pb.GetSessionRequest(session_id="sess_0")),
        "TURN_NOT_FOUND": client.sessions.GetTurn(pb.GetTurnRequest(turn_id="turn_0")),
    }
    for reason, call in calls.items():
        assert (await refusal(call)).reason == reason
    for call in (
        client.sessions.ListTurns(pb.ListTurnsRequest(session_id="sess_0")),
        client.sessions.ListItems(pb.ListItemsRequest(session_id="sess_0")),
        client.sessions.ListArtifacts(pb.ListArtifactsRequest(session_id="sess_0")),
        client.sessions.CancelTurn(pb.CancelTurnRequest(session_id="sess_0")),
        submit(client, "sess_0"),
    ):
        assert (await refusal(call)).reason == "SESSION_NOT_FOUND"
    await client.sessions.DeleteSession(pb.DeleteSessionRequest(session_id="sess_0"))


async def test_what_is_asked_for_is_shown_and_secrets_are_not(client: Client):
    request = scripted(calls("true"), text="")
    request.environment.env["TOKEN"] = "hidden"
    request.environment.files.add(path="/workspace/a/b.txt", inline=b"12345", description="five")
    created = (await client.sessions.CreateSession(request)).session
    assert created.agent.model == "scripted:test"
    assert created.agent.provider.script.yaml == ""
    (file,) = created.environment.files
    assert (file.path, file.size_bytes, file.description) == ("/workspace/a/b.txt", 5, "five")
    assert created.environment.image == "base"
    assert "hidden" not in str(created)
    assert "hidden" not in str(await heard(client, created.id))


async def test_a_session_without_input_gets_its_container_and_waits(client: Client, peers: Peers):
    request = scripted(calls("cat a.txt"), text="")
    request.environment.files.add(path="/workspace/a.txt", inline=b"staged")
    created = (await client.sessions.CreateSession(request)).session
    await until(lambda: bool(peers.runtime.containers))
    await until(lambda: container(peers).joinpath("workspace/a.txt").exists())
    assert container(peers).joinpath("workspace/a.txt").read_bytes() == b"staged"
    assert set(peers.egress.attached) == set(peers.runtime.containers)
    await submit(client, created.id)
    await heard(client, created.id)
    assert len(peers.runtime.containers) == 1


def bad(change) -> pb.CreateSessionRequest:
    request = scripted(calls("true"))
    change(request)
    return request


@pytest.mark.parametrize(
    ("field", "reason", "change"),
    [
        ("review", "NOT_SUPPORTED", lambda r: setattr(r, "review", pb.REVIEW_AUTO_REVIEW)),
        ("review", "INVALID_FIELD", lambda r: setattr(r, "review", 9)),
        ("project_id", "INVALID_FIELD", lambda r: setattr(r, "project_id", "other")),
        ("metadata", "INVALID_FIELD", lambda r: r.metadata.update({"k" * 65: "v"})),
        ("request_id", "INVALID_FIELD", lambda r: setattr(r, "request_id", "x" * 129)),
        (
            "environment.network.access",
            "NOT_SUPPORTED",
            lambda r: setattr(
                r.environment.network, "access", environments_pb2.NetworkPolicy.ACCESS_ENABLED
            ),
        ),
        (
            "environment.files[0].path",
            "INVALID_FIELD",
            lambda r: r.environment.files.add(path="/etc/passwd", inline=b""),
        ),
        (
            "environment.files[0].path",
            "INVALID_FIELD",
            lambda r: r.environment.files.add(path="/workspace/../etc/x", inline=b""),
        ),
        (
            "environment.files[0].path",
            "INVALID_FIELD",
            lambda r: r.environment.files.add(path="/workspace/outputs/x", inline=b""),
        ),
        ("environment.env", "INVALID_FIELD", lambda r: r.environment.env.update({"A=B": "c"})),
        ("input", "INVALID_FIELD", lambda r: setattr(r.input[0], "text", "  ")),
        (
            "agent.provider.script.yaml",
            "INVALID_FIELD",
            lambda r: setattr(r.agent.provider.script, "yaml", "turns: 3"),
        ),
        ("agent.model", "INVALID_FIELD", lambda r: setattr(r.agent, "model", "gpt")),
        (
            "agent.reasoning.effort",
            "INVALID_FIELD",
            lambda r: setattr(r.agent.reasoning, "effort", 77),
        ),
        (None, "MODEL_NOT_CONFIGURED", lambda r: r.agent.ClearField("provider")),
    ],
)
async def test_what_is_not_offered_is_refused_by_name(client: Client, field, reason, change):
    error = await refusal(client.sessions.CreateSession(bad(change)))
    assert (error.metadata.get("field"), error.reason) == (field, reason)


async def test_a_file_that_is_not_there_is_not_found(client: Client):
    request = scripted(calls("true"))
    request.environment.files.add(path="/workspace/a", file_id="file_0")
    assert (await refusal(client.sessions.CreateSession(request))).reason == "FILE_NOT_FOUND"


async def test_deleting_a_session_leaves_none_of_its_bytes(client: Client, peers: Peers):
    request = scripted(calls("printf out > outputs/x"))
    request.environment.files.add(path="/workspace/a.txt", inline=b"staged")
    created = await client.sessions.CreateSession(request)
    await heard(client, created.session.id)
    folder = peers.home().db / "blobs" / "sessions"
    assert list(folder.iterdir())
    await client.sessions.DeleteSession(pb.DeleteSessionRequest(session_id=created.session.id))
    assert not list(folder.iterdir())
    assert not peers.runtime.containers
    assert not peers.egress.attached


async def test_an_endpoint_is_the_owners_to_name(client: Client):
    request = pb.CreateSessionRequest()
    request.agent.model = "m"
    request.agent.provider.endpoint.base_url = "http://127.0.0.1:9/v1"
    request.agent.provider.endpoint.api_key = "secret-key"
    request.agent.provider.endpoint.protocol = agents_pb2.ModelEndpoint.PROTOCOL_CHAT
    session = (await client.sessions.CreateSession(request)).session
    assert session.agent.provider.endpoint.base_url == "http://127.0.0.1:9/v1"
    assert "secret-key" not in str(session)
    request.agent.provider.endpoint.base_url = "file:///etc/passwd"
    error = await refusal(client.sessions.CreateSession(request))
    assert error.metadata["field"] == "agent.provider.endpoint.base_url"


async def test_a_session_is_changed_as_a_whole_or_not_at_all(client: Client):
    created = await client.sessions.CreateSession(
        pb.CreateSessionRequest(
            metadata={"a": "1"},
            agent=agents_pb2.Agent(
                model="one",
                provider=agents_pb2.ModelProvider(
                    endpoint=agents_pb2.ModelEndpoint(base_url="http://127.0.0.1:9/v1")
                ),
            ),
        )
    )
    request = pb.UpdateSessionRequest(session_id=created.session.id, metadata={"b": "2"})
    request.agent.model = "two"
    request.agent.reasoning.effort = agents_pb2.Reasoning.EFFORT_HIGH
    request.update_mask.paths.extend(["metadata", "agent.model", "agent.reasoning", "review"])
    request.review = pb.REVIEW_AUTO_REVIEW
    error = await refusal(client.sessions.UpdateSession(request))
    assert (error.reason, error.metadata["field"]) == ("NOT_SUPPORTED", "review")
    request.review = pb.REVIEW_UNSPECIFIED
    error = await refusal(client.sessions.UpdateSession(request))
    assert (error.reason, error.metadata["field"]) == ("INVALID_FIELD", "review")
    seen = await client.sessions.GetSession(pb.GetSessionRequest(session_id=created.session.id))
    assert seen.session.agent.model == "one" and dict(seen.session.metadata) == {"a": "1"}
    request.review = pb.REVIEW_NONE
    changed = (await client.sessions.UpdateSession(request)).session
    assert changed.agent.model == "two"
    assert changed.agent.reasoning.effort == agents_pb2.Reasoning.EFFORT_HIGH
    assert changed.agent.provider.endpoint.base_url == "http://127.0.0.1:9/v1"
    found = await client.sessions.ListSessions(pb.ListSessionsRequest(metadata={"b": "2"}))
    assert [session.id for session in found.sessions] == [created.session.id]
    gone = await client.sessions.ListSessions(pb.ListSessionsRequest(metadata={"a": "1"}))
    assert not gone.sessions


@pytest.mark.parametrize(
    ("paths", "field"),
    [
        ([], "update_mask"),
        (["environment"], "update_mask"),
        (["agent.instructions"], "update_mask"),
        (["metadata"], "metadata"),
        (["agent.model"], "agent.model"),
    ],
)
async def test_what_of_a_session_cannot_be_changed_is_refused(
    client: Client, paths: list[str], field: str
):
    created = await client.sessions.CreateSession(scripted(calls("true"), text=""))
    request = pb.UpdateSessionRequest(
        session_id=created.session.id, metadata={str(n): "x" for n in range(17)}
    )
    request.update_mask.paths.extend(paths)
    error = await refusal(client.sessions.UpdateSession(request))
    assert (error.reason, error.metadata["field"]) == ("INVALID_FIELD", field)


async def test_a_session_may_be_changed_while_it_works(client: Client, peers: Peers):
    created = await client.sessions.CreateSession(scripted(calls(WAITING)))
    session_id = created.session.id
    await until(lambda: bool(peers.runtime.starts))
    request = pb.UpdateSessionRequest(session_id=session_id, metadata={"a": "1"})
    request.update_mask.paths.append("metadata")
    await client.sessions.UpdateSession(request)
    container(peers).joinpath("workspace/go").touch()
    await heard(client, session_id)
    seen = await client.sessions.GetSession(pb.GetSessionRequest(session_id=session_id))
    assert dict(seen.session.metadata) == {"a": "1"}
    error = await refusal(
        client.sessions.UpdateSession(
            pb.UpdateSessionRequest(session_id="sess_0", update_mask=request.update_mask)
        )
    )
    assert error.reason == "SESSION_NOT_FOUND"
