"""Who may call, and what only the owner may do."""

import grpc
import pytest

from tests.orchestrator.service.conftest import Peers, calls, heard, kinds, refusal, scripted
from workroom.client import Client
from workroom.errors import WorkroomError
from workroom.orchestrator.v1 import keys_pb2
from workroom.orchestrator.v1 import sessions_pb2 as pb


async def test_a_key_opens_the_tcp_address_until_it_is_deleted(peers: Peers):
    async with peers.orchestrator() as (serving, owner):
        made = await owner.keys.CreateKey(keys_pb2.CreateKeyRequest(name="owner"))
        assert made.secret.startswith("wr_")
        async with Client.connect(serving.addresses[1], key=made.secret) as client:
            created = await client.sessions.CreateSession(scripted(calls("true")))
            assert kinds(await heard(client, created.session.id))[-1] == "session_idle"
            for call in (
                client.keys.CreateKey(keys_pb2.CreateKeyRequest(name="mine")),
                client.keys.ListKeys(keys_pb2.ListKeysRequest()),
                client.keys.DeleteKey(keys_pb2.DeleteKeyRequest(key_id=made.key.id)),
            ):
                assert (await refusal(call)).reason == "OWNER_ONLY"
            listed = await owner.keys.ListKeys(keys_pb2.ListKeysRequest())
            assert [key.name for key in listed.keys] == ["owner"]
            assert made.secret not in str(listed)
            await owner.keys.DeleteKey(keys_pb2.DeleteKeyRequest(key_id=made.key.id))
            error = await refusal(client.sessions.ListSessions(pb.ListSessionsRequest()))
            assert error.code is grpc.StatusCode.UNAUTHENTICATED


@pytest.mark.parametrize("key", [None, "wr_wrong"])
async def test_without_a_known_key_nothing_is_answered(peers: Peers, key: str | None):
    async with (
        peers.orchestrator() as (serving, _),
        Client.connect(serving.addresses[1], key=key) as client,
    ):
        for call in (
            client.sessions.ListSessions(pb.ListSessionsRequest()),
            client.sessions.CreateSession(scripted(calls("true"))),
            client.keys.CreateKey(keys_pb2.CreateKeyRequest(name="x")),
        ):
            error = await refusal(call)
            assert error.code is grpc.StatusCode.UNAUTHENTICATED
        assert not peers.runtime.containers


@pytest.mark.parametrize("allowed", [False, True])
async def test_a_key_may_name_an_endpoint_where_that_is_allowed(peers: Peers, allowed: bool):
    async with peers.orchestrator(allow_session_endpoints=allowed) as (serving, owner):
        made = await owner.keys.CreateKey(keys_pb2.CreateKeyRequest(name="k"))
        async with Client.connect(serving.addresses[1], key=made.secret) as client:
            request = pb.CreateSessionRequest()
            request.agent.model = "m"
            request.agent.provider.endpoint.base_url = "http://127.0.0.1:9/v1"
            if allowed:
                assert (await client.sessions.CreateSession(request)).session.id
            else:
                error = await refusal(client.sessions.CreateSession(request))
                assert error.reason == "ENDPOINT_NOT_ALLOWED"


async def test_a_key_needs_a_name(peers: Peers):
    async with peers.orchestrator() as (_, owner):
        for name in ("", "x" * 256, "a\nb"):
            error = await refusal(owner.keys.CreateKey(keys_pb2.CreateKeyRequest(name=name)))
            assert error.reason == "INVALID_FIELD"


async def test_a_second_orchestrator_is_refused_the_same_data(peers: Peers):
    async with peers.orchestrator():
        with pytest.raises(WorkroomError) as raised:
            async with peers.orchestrator(socket=f"unix:{peers.directory}/other.sock"):
                pass
        assert raised.value.reason == "ALREADY_RUNNING"


async def test_a_lost_key_file_is_noticed_at_start(peers: Peers):
    async with peers.orchestrator() as (_, client):
        request = pb.CreateSessionRequest()
        request.agent.model = "m"
        request.agent.provider.endpoint.base_url = "http://127.0.0.1:9/v1"
        request.agent.provider.endpoint.api_key = "secret"
        await client.sessions.CreateSession(request)
    (peers.directory / "key").unlink()
    with pytest.raises(WorkroomError) as raised:
        async with peers.orchestrator():
            pass
    assert raised.value.reason == "UNUSABLE_KEY_FILE"
