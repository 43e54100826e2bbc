import asyncio
import os
import signal
import sys
from contextlib import asynccontextmanager

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from egress_proxy.__main__ import running
from egress_proxy.config import Config
from egress_proxy.errors import AttachmentNotFound, RevisionMismatch
from workroom.egress.v1 import egress_pb2 as pb
from workroom.egress.v1 import egress_pb2_grpc as rpc
from workroom.errors import InvalidField, NotSupported
from workroom.rpc.channel import open_channel, translate_errors

UNHEARD_OF = pb.Policy.FromString(b"\x08\x09")
DISABLED = pb.Policy(access=pb.Policy.ACCESS_DISABLED)


@asynccontextmanager
async def egress(home):
    async with (
        running(Config(home=home)) as server,
        open_channel(server.address) as channel,
    ):
        yield rpc.EgressServiceStub(channel)


@pytest.fixture
async def stub(tmp_path):
    async with egress(tmp_path / "home") as stub:
        yield stub


async def attached(
    stub: "rpc.EgressServiceAsyncStub", container_id="ctr_1", **more
) -> pb.Attachment:
    with translate_errors():
        request = pb.AttachContainerRequest(container_id=container_id, **more)
        return (await stub.AttachContainer(request, timeout=5)).attachment


async def found(stub: "rpc.EgressServiceAsyncStub", container_id="ctr_1") -> pb.Attachment:
    with translate_errors():
        request = pb.GetAttachmentRequest(container_id=container_id)
        return (await stub.GetAttachment(request, timeout=5)).attachment


async def test_a_container_is_attached_under_the_policy_disabled(stub):
    attachment = await attached(stub, policy=DISABLED)
    assert (attachment.container_id, attachment.project_id) == ("ctr_1", "default")
    assert attachment.policy == DISABLED
    assert attachment.revision == 1
    assert attachment.create_time == attachment.update_time
    assert await found(stub) == attachment


async def test_no_policy_means_disabled_and_the_same_policy_changes_nothing(stub):
    first = await attached(stub)
    assert first.policy == DISABLED
    assert await attached(stub, policy=DISABLED) == first
    assert await attached(stub, policy=DISABLED, expected_revision=1) == first


@pytest.mark.parametrize(
    "policy",
    [
        pb.Policy(access=pb.Policy.ACCESS_ENABLED),
        pb.Policy(access=pb.Policy.ACCESS_RESTRICTED, allowed_domains=["example.com"]),
        pb.Policy(access=pb.Policy.ACCESS_RESTRICTED, blocked_domains=["example.com"]),
    ],
)
async def test_more_access_is_refused_by_name_and_attaches_nothing(stub, policy):
    with pytest.raises(NotSupported) as caught:
        await attached(stub, policy=policy)
    assert caught.value.field == "policy.access"
    assert "disabled" in caught.value.problem
    with pytest.raises(AttachmentNotFound):
        await found(stub)


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"container_id": ""}, "container_id"),
        ({"container_id": "x" * 257}, "container_id"),
        ({"project_id": "x" * 257}, "project_id"),
        ({"expected_revision": -1}, "expected_revision"),
        ({"policy": UNHEARD_OF}, "policy.access"),
        ({"policy": pb.Policy(allowed_domains=["a"])}, "policy.allowed_domains"),
        (
            {"policy": pb.Policy(access=pb.Policy.ACCESS_DISABLED, blocked_domains=["a"])},
            "policy.blocked_domains",
        ),
    ],
)
async def test_what_may_not_be_asked_is_named(stub, more, field):
    with pytest.raises(InvalidField) as caught:
        await attached(stub, **more)
    assert caught.value.field == field


async def test_an_attachment_stays_with_its_project(stub):
    await attached(stub, project_id="one")
    with pytest.raises(InvalidField) as caught:
        await attached(stub, project_id="two")
    assert caught.value.field == "project_id"


async def test_a_revision_that_is_not_the_current_one_changes_nothing(stub):
    with pytest.raises(RevisionMismatch) as caught:
        await attached(stub, expected_revision=1)
    assert caught.value.metadata["revision"] == "0"
    await attached(stub, expected_revision=0)
    with pytest.raises(RevisionMismatch):
        await attached(stub, expected_revision=0)


async def test_a_detached_container_is_gone_and_may_be_detached_again(stub):
    await attached(stub)
    request = pb.DetachContainerRequest(container_id="ctr_1")
    await stub.DetachContainer(request, timeout=5)
    await stub.DetachContainer(request, timeout=5)
    with pytest.raises(AttachmentNotFound):
        await found(stub)
    assert (await attached(stub)).revision == 1


async def test_many_at_once_attach_a_container_once(stub):
    attachments = await asyncio.gather(*(attached(stub) for _ in range(20)))
    assert all(attachment == attachments[0] for attachment in attachments)


async def test_attachments_are_listed_oldest_first_in_pages(stub):
    for number in range(5):
        await attached(stub, f"ctr_{number}")
    await stub.DetachContainer(pb.DetachContainerRequest(container_id="ctr_1"), timeout=5)
    seen, token = [], ""
    while True:
        request = pb.ListAttachmentsRequest(page_size=2, page_token=token)
        page = await stub.ListAttachments(request, timeout=5)
        assert len(page.attachments) <= 2
        seen += [attachment.container_id for attachment in page.attachments]
        token = page.next_page_token
        if not token:
            break
    assert seen == ["ctr_0", "ctr_2", "ctr_3", "ctr_4"]
    with pytest.raises(InvalidField), translate_errors():
        await stub.ListAttachments(pb.ListAttachmentsRequest(page_token="x"), timeout=5)


async def test_a_restart_remembers_who_is_attached(tmp_path):
    async with egress(tmp_path / "home") as stub:
        first = await attached(stub)
    async with egress(tmp_path / "home") as stub:
        assert await found(stub) == first


async def test_the_process_serves_on_its_socket_and_outlives_a_kill(tmp_path):
    environ = {**os.environ, "WORKROOM_HOME": str(tmp_path / "home")}
    for signal_number, status in ((signal.SIGKILL, -9), (signal.SIGTERM, 0)):
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "egress_proxy", env=environ, stderr=asyncio.subprocess.DEVNULL
        )
        try:
            async with (
                asyncio.timeout(20),
                open_channel(f"unix:{tmp_path}/home/run/egress.sock") as channel,
            ):
                check = health_pb2_grpc.HealthStub(channel).Check
                await check(health_pb2.HealthCheckRequest(), wait_for_ready=True)
                stub = rpc.EgressServiceStub(channel)
                if status:
                    await attached(stub)
                assert (await found(stub)).revision == 1
                process.send_signal(signal_number)
                assert await process.wait() == status
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
