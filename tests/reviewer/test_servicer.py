import asyncio
import os
import signal
import sys
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from reviewer.__main__ import running
from reviewer.config import Config
from reviewer.errors import DecisionNotFound
from reviewer.reviews import Reviews
from reviewer.rules.prefixes import Rules
from reviewer.servicer import review_request
from reviewer.store import DecisionStore
from workroom.errors import InvalidField, NotSupported, WorkroomError
from workroom.reviewer.v1 import reviewer_pb2 as pb
from workroom.reviewer.v1 import reviewer_pb2_grpc as rpc
from workroom.rpc.channel import open_channel, translate_errors
from workroom.rpc.config import ConfigError

ALLOWED, DENIED = pb.Decision.OUTCOME_ALLOWED, pb.Decision.OUTCOME_DENIED


@asynccontextmanager
async def reviewer(home, **settings):
    async with (
        running(Config(home=home, **settings)) as server,
        open_channel(server.address) as channel,
    ):
        yield rpc.ReviewerServiceStub(channel)


@pytest.fixture
async def stub(tmp_path):
    async with reviewer(tmp_path / "home") as stub:
        yield stub


def asking(script="ls", request_id="item_1", **more) -> pb.ReviewActionRequest:
    command = {key: more.pop(key) for key in ("cwd", "as_root", "justification") if key in more}
    return pb.ReviewActionRequest(
        request_id=request_id,
        session_id=more.pop("session_id", "sess_1"),
        turn_id="turn_1",
        item_id="item_1",
        mode=more.pop("mode", pb.REVIEW_MODE_NONE),
        command=pb.CommandAction(script=script, **command),
        **more,
    )


async def asked(
    stub: "rpc.ReviewerServiceAsyncStub", request: pb.ReviewActionRequest
) -> pb.Decision:
    with translate_errors():
        return (await stub.ReviewAction(request, timeout=10)).decision


async def test_an_ordinary_command_is_allowed_and_the_decision_kept(stub):
    decision = await asked(stub, asking("python3 main.py"))
    assert decision.outcome == ALLOWED
    assert decision.verdict == pb.VERDICT_UNKNOWN
    assert decision.id.startswith("dec_")
    assert (decision.project_id, decision.session_id) == ("default", "sess_1")
    assert (decision.turn_id, decision.item_id) == ("turn_1", "item_1")
    assert len(decision.action_digest) == 64
    assert decision.create_time.ToDatetime(UTC) <= datetime.now(UTC)
    kept = await stub.GetDecision(pb.GetDecisionRequest(decision_id=decision.id), timeout=5)
    assert kept.decision == decision


async def test_a_dangerous_command_is_denied_with_rule_and_command(stub):
    decision = await asked(stub, asking("ls; rm -rf /etc"))
    assert (decision.outcome, decision.verdict) == (DENIED, pb.VERDICT_DANGEROUS)
    assert (decision.rule_id, decision.matched_command) == ("removal", "rm -rf /etc")
    assert "does not permit dangerous actions" in decision.reason


async def test_permissions_allow_what_they_name(stub):
    everything = pb.Permissions(root=True, dangerous=True)
    decision = await asked(stub, asking("rm -rf /etc", as_root=True, permissions=everything))
    assert decision.outcome == ALLOWED
    forbidden = await asked(stub, asking("nsenter -a", "item_2", permissions=everything))
    assert (forbidden.outcome, forbidden.verdict) == (DENIED, pb.VERDICT_FORBIDDEN)
    assert forbidden.rule_id == "other-namespaces"


async def test_granted_folders_and_the_current_folder_count(stub):
    roots = pb.Permissions(writable_roots=["/data/"])
    assert (await asked(stub, asking("touch x", "a", cwd="/data", permissions=roots))).outcome == (
        ALLOWED
    )
    assert (await asked(stub, asking("touch x", "b", cwd="/data"))).outcome == DENIED
    assert (await asked(stub, asking("touch x", "c", cwd="sub"))).outcome == ALLOWED


async def test_an_argument_list_is_judged_as_it_is(stub):
    request = pb.ReviewActionRequest(
        request_id="a", command=pb.CommandAction(argv=pb.ArgumentList(args=["cat", "$(x)"]))
    )
    assert (await asked(stub, request)).verdict == pb.VERDICT_SAFE


async def test_a_repeated_request_gets_the_same_decision(stub):
    first, second = await asyncio.gather(asked(stub, asking()), asked(stub, asking()))
    assert first == second == await asked(stub, asking())
    listed = await stub.ListDecisions(pb.ListDecisionsRequest(), timeout=5)
    assert len(listed.decisions) == 1


async def test_the_digest_tells_actions_and_permissions_apart(stub):
    requests = [
        asking(request_id="a"),
        asking(request_id="b", as_root=True),
        asking(request_id="c", cwd="/tmp"),
        asking(request_id="d", permissions=pb.Permissions(root=True)),
        asking(request_id="e", permissions=pb.Permissions(dangerous=True)),
        asking("pwd", request_id="f"),
    ]
    decisions = [await asked(stub, request) for request in requests]
    assert len({decision.action_digest for decision in decisions}) == len(requests)


async def test_a_request_id_serves_for_one_action(stub):
    await asked(stub, asking())
    with pytest.raises(WorkroomError, match="was made before"):
        await asked(stub, asking("pwd"))
    assert (await asked(stub, asking("pwd", project_id="other"))).outcome == ALLOWED


async def test_automatic_review_is_refused_by_name(stub):
    with pytest.raises(NotSupported) as caught:
        await asked(stub, asking(mode=pb.REVIEW_MODE_AUTO_REVIEW))
    assert caught.value.field == "mode"
    assert not (await stub.ListDecisions(pb.ListDecisionsRequest(), timeout=5)).decisions


@pytest.mark.parametrize(
    ("request_message", "field"),
    [
        (asking(request_id=""), "request_id"),
        (asking(request_id="x" * 129), "request_id"),
        (asking(session_id="x" * 257), "session_id"),
        (asking(mode=17), "mode"),
        (asking("x" * (128 * 1024 + 1)), "command.script"),
        (asking(permissions=pb.Permissions(writable_roots=["data"])), "permissions.writable_roots"),
        (pb.ReviewActionRequest(request_id="a"), "command"),
        (pb.ReviewActionRequest(request_id="a", command=pb.CommandAction()), "command"),
        (
            pb.ReviewActionRequest(
                request_id="a", command=pb.CommandAction(argv=pb.ArgumentList())
            ),
            "command.argv.args",
        ),
    ],
)
def test_what_may_not_be_asked_is_named(request_message, field):
    with pytest.raises(InvalidField) as caught:
        review_request(request_message)
    assert caught.value.field == field


async def test_an_unknown_decision_is_not_found(stub):
    with pytest.raises(DecisionNotFound), translate_errors():
        await stub.GetDecision(pb.GetDecisionRequest(decision_id="dec_x"), timeout=5)


async def test_decisions_are_listed_newest_first_in_pages(stub):
    for number in range(5):
        await asked(stub, asking(request_id=f"r{number}", session_id=f"sess_{number % 2}"))
    seen, token = [], ""
    while True:
        request = pb.ListDecisionsRequest(session_id="sess_0", page_size=2, page_token=token)
        page = await stub.ListDecisions(request, timeout=5)
        seen += [decision.id for decision in page.decisions]
        token = page.next_page_token
        if not token:
            break
    everything = await stub.ListDecisions(pb.ListDecisionsRequest(), timeout=5)
    ids = [d.id for d in everything.decisions if d.session_id == "sess_0"]
    assert seen == ids and len(seen) == 3
    times = [decision.create_time.ToDatetime() for decision in everything.decisions]
    assert times == sorted(times, reverse=True)


@pytest.mark.parametrize(
    ("page_size", "page_token", "field"),
    [(-1, "", "page_size"), (0, "nonsense", "page_token"), (0, "YTox", "page_token")],
)
async def test_a_page_that_cannot_be_is_refused(stub, page_size, page_token, field):
    request = pb.ListDecisionsRequest(page_size=page_size, page_token=page_token)
    with pytest.raises(InvalidField) as caught, translate_errors():
        await stub.ListDecisions(request, timeout=5)
    assert caught.value.field == field


async def test_decisions_outlive_the_process(tmp_path):
    async with reviewer(tmp_path / "home") as stub:
        first = await asked(stub, asking())
    async with reviewer(tmp_path / "home") as stub:
        assert await asked(stub, asking()) == first


async def test_decisions_are_forgotten_when_their_retention_ends(tmp_path):
    times = [datetime(2026, 1, 1, tzinfo=UTC)]
    async with DecisionStore.opened(tmp_path / "r.db") as store:
        reviews = Reviews(Rules(), store, retention=timedelta(days=1), now=lambda: times[-1])
        kept = await reviews.review(review_request(asking()))
        times.append(times[0] + timedelta(hours=24))
        assert await reviews.clean() == 0
        assert await reviews.get(kept.id) == kept
        times.append(times[0] + timedelta(hours=24, seconds=1))
        assert await reviews.clean() == 1
        with pytest.raises(DecisionNotFound):
            await reviews.get(kept.id)


async def test_others_are_served_while_a_long_script_is_read(stub):
    long = "echo some words to be read; " * 1_500
    async with asyncio.TaskGroup() as tasks:
        slow = tasks.create_task(asked(stub, asking(long, "slow")))
        assert (await asked(stub, asking())).outcome == ALLOWED
    assert slow.result().outcome in (ALLOWED, DENIED)


async def test_the_operators_rules_are_added_to_the_default_ones(tmp_path):
    file = tmp_path / "rules.yaml"
    file.write_text(
        "rules: [{id: no-make, prefix: [make], decision: forbid, justification: not here}]"
    )
    async with reviewer(tmp_path / "home", rules_file=file) as stub:
        own = await asked(stub, asking("make", "a"))
        assert (own.rule_id, own.outcome) == ("no-make", DENIED)
        assert (await asked(stub, asking("nsenter -a", "b"))).rule_id == "other-namespaces"


def test_bad_rules_are_refused_at_start_with_file_and_line(tmp_path):
    file = tmp_path / "rules.yaml"
    file.write_text("rules:\n  - id: 3\n    wrong: 4\n")
    with pytest.raises(ConfigError) as caught:
        Config(rules_file=file).rules()
    assert f"REVIEWER_RULES_FILE: {file}, line 3" in caught.value.message
    with pytest.raises(ConfigError):
        Config(rules_file=tmp_path / "missing").rules()


async def test_the_process_serves_on_its_socket_and_stops_when_asked(tmp_path):
    environ = {**os.environ, "WORKROOM_HOME": str(tmp_path / "home")}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "reviewer", env=environ, stderr=asyncio.subprocess.DEVNULL
    )
    try:
        async with (
            asyncio.timeout(20),
            open_channel(f"unix:{tmp_path}/home/run/reviewer.sock") as channel,
        ):
            check = health_pb2_grpc.HealthStub(channel).Check
            await check(health_pb2.HealthCheckRequest(), wait_for_ready=True)
            stub = rpc.ReviewerServiceStub(channel)
            assert (await asked(stub, asking())).outcome == ALLOWED
            process.send_signal(signal.SIGTERM)
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_tcp_without_a_key_is_refused_and_with_one_asks_for_it(tmp_path):
    settings = Config.from_env(
        {
            "REVIEWER_ADDRESS": "127.0.0.1:0",
            "REVIEWER_TOKEN": "k" * 32,
            "REVIEWER_HOME": str(tmp_path / "h"),
        }
    )
    async with running(settings) as server:
        async with open_channel(server.address) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await rpc.ReviewerServiceStub(channel).ReviewAction(asking(), timeout=5)
            assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
        async with open_channel(server.address, key="k" * 32) as channel:
            assert (await asked(rpc.ReviewerServiceStub(channel), asking())).outcome == ALLOWED
