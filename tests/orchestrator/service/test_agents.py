"""Agents that are kept, and the sessions that begin with them."""

import pytest

from tests.orchestrator.service.conftest import Peers, calls, heard, items, kinds, refusal, submit
from workroom.client import Client
from workroom.orchestrator.v1 import agents_pb2 as pb
from workroom.orchestrator.v1 import keys_pb2, sessions_pb2

SECRET = "sk-very-secret"


def asked(name: str = "tester", **fields: object) -> pb.CreateAgentRequest:
    request = pb.CreateAgentRequest(name=name, **fields)  # type: ignore[arg-type]
    request.agent.instructions = "Be brief."
    request.agent.provider.script.name = "t"
    request.agent.provider.script.yaml = calls("echo by the saved agent")
    return request


def endpoint(**fields: str) -> pb.CreateAgentRequest:
    agent = pb.Agent(
        model="m",
        provider=pb.ModelProvider(
            endpoint=pb.ModelEndpoint(base_url="http://127.0.0.1:9/v1", api_key=SECRET)
        ),
    )
    return pb.CreateAgentRequest(agent=agent, **fields)  # type: ignore[arg-type]


async def create(client: Client, request: pb.CreateAgentRequest) -> pb.SavedAgent:
    return (await client.agents.CreateAgent(request)).agent


async def test_a_session_is_what_its_agent_was_when_it_began(client: Client):
    saved = await create(client, asked(metadata={"team": "a"}))
    assert saved.id.startswith("agt_")
    request = sessions_pb2.CreateSessionRequest(agent_id=saved.id)
    request.input.add(text="go")
    created = (await client.sessions.CreateSession(request)).session
    assert (created.agent_id, created.agent.instructions) == (saved.id, "Be brief.")
    assert kinds(await heard(client, created.id))[-1] == "session_idle"
    await client.agents.DeleteAgent(pb.DeleteAgentRequest(agent_id=saved.id))
    await submit(client, created.id)
    await heard(client, created.id)
    told = [item.command_execution.stdout for item in await items(client, created.id)]
    assert told.count("by the saved agent\n") == 2
    listed = await client.sessions.ListSessions(sessions_pb2.ListSessionsRequest(agent_id=saved.id))
    assert [session.id for session in listed.sessions] == [created.id]
    other = await client.sessions.ListSessions(sessions_pb2.ListSessionsRequest(agent_id="agt_0"))
    assert not other.sessions


async def test_what_a_session_sets_stands_instead_of_what_the_agent_has(client: Client):
    saved = await create(client, endpoint())
    request = sessions_pb2.CreateSessionRequest(agent_id=saved.id)
    request.agent.instructions = "Be long."
    agent = (await client.sessions.CreateSession(request)).session.agent
    assert (agent.instructions, agent.model) == ("Be long.", "m")
    assert agent.provider.endpoint.base_url == "http://127.0.0.1:9/v1"
    kept = (await client.agents.GetAgent(pb.GetAgentRequest(agent_id=saved.id))).agent
    assert kept == saved


async def test_an_agent_is_changed_in_what_the_mask_names(client: Client):
    saved = await create(client, asked(metadata={"team": "a"}))
    request = pb.UpdateAgentRequest(agent_id=saved.id, name="other", metadata={"x": "y"})
    request.update_mask.paths.extend(["name", "agent.instructions"])
    changed = (await client.agents.UpdateAgent(request)).agent
    assert (changed.name, changed.agent.instructions) == ("other", "")
    assert dict(changed.metadata) == {"team": "a"}
    assert changed.agent.provider.script.name == "t"
    assert changed.update_time.ToMicroseconds() > saved.update_time.ToMicroseconds()
    assert changed.create_time == saved.create_time


async def test_agents_are_listed_newest_first(client: Client):
    made = [(await create(client, asked(str(number)))).id for number in range(3)]
    first = await client.agents.ListAgents(pb.ListAgentsRequest(page_size=2))
    rest = await client.agents.ListAgents(
        pb.ListAgentsRequest(page_size=2, page_token=first.next_page_token)
    )
    assert [agent.id for agent in (*first.agents, *rest.agents)] == made[::-1]


async def test_a_request_id_gives_the_same_agent_again(client: Client):
    saved = await create(client, asked(request_id="r"))
    assert await create(client, asked(request_id="r")) == saved
    error = await refusal(create(client, asked("other", request_id="r")))
    assert error.reason == "REQUEST_ID_REUSED"


async def test_an_agent_that_is_not_there_is_said_not_to_be(client: Client):
    mask = pb.UpdateAgentRequest(agent_id="agt_0")
    mask.update_mask.paths.append("name")
    for call in (
        client.agents.GetAgent(pb.GetAgentRequest(agent_id="agt_0")),
        client.agents.UpdateAgent(mask),
        client.sessions.CreateSession(sessions_pb2.CreateSessionRequest(agent_id="agt_0")),
    ):
        assert (await refusal(call)).reason == "AGENT_NOT_FOUND"
    await client.agents.DeleteAgent(pb.DeleteAgentRequest(agent_id="agt_0"))


@pytest.mark.parametrize(
    ("fields", "path", "field"),
    [
        ({"name": "x" * 257}, "name", "name"),
        ({"metadata": {"x": "y" * 513}}, "metadata", "metadata.x"),
        ({"agent": pb.Agent(model="m" * 257)}, "agent.model", "agent.model"),
        ({"agent": pb.Agent(model="m")}, "agent.model", "agent.model"),
        ({}, "agent.colour", "update_mask"),
    ],
)
async def test_what_an_agent_may_not_be_is_refused_and_leaves_it_as_it_was(
    client: Client, fields: dict[str, object], path: str, field: str
):
    saved = await create(client, asked())
    request = pb.UpdateAgentRequest(agent_id=saved.id, **fields)  # type: ignore[arg-type]
    request.update_mask.paths.append(path)
    error = await refusal(client.agents.UpdateAgent(request))
    assert (error.reason, error.metadata["field"]) == ("INVALID_FIELD", field)
    kept = (await client.agents.GetAgent(pb.GetAgentRequest(agent_id=saved.id))).agent
    assert kept == saved


async def test_a_key_of_a_model_server_is_on_no_disk_and_in_no_answer(peers: Peers):
    async with peers.orchestrator() as (serving, owner):
        saved = await create(owner, endpoint())
        assert SECRET not in str(saved)
        made = await owner.keys.CreateKey(keys_pb2.CreateKeyRequest(name="k"))
        async with Client.connect(serving.addresses[1], key=made.secret) as caller:
            assert (await refusal(create(caller, endpoint()))).reason == "ENDPOINT_NOT_ALLOWED"
            request = sessions_pb2.CreateSessionRequest(agent_id=saved.id)
            await caller.sessions.CreateSession(request)
    for path in peers.home().root.rglob("*"):
        assert not path.is_file() or SECRET.encode() not in path.read_bytes()
