from dataclasses import replace
from datetime import UTC, datetime, timedelta

import grpc
import pytest

from orchestrator.records import (
    Agent,
    CommandExecution,
    Environment,
    Item,
    ItemState,
    Permissions,
    Review,
    Session,
    SessionState,
)
from orchestrator.reviews import ReviewFailed, Reviews
from workroom.reviewer.v1 import reviewer_pb2 as pb
from workroom.reviewer.v1 import reviewer_pb2_grpc as rpc
from workroom.rpc.channel import open_channel

NOW = datetime(2026, 1, 1, tzinfo=UTC)
COMMAND = CommandExecution(
    "call_1", "rm -rf /", timedelta(1), 10, cwd="/tmp", as_root=True, justification="because"
)
ITEM = Item("cmd_1", "sess_1", "turn_1", ItemState.IN_PROGRESS, NOW, COMMAND)
SESSION = Session(
    "sess_1",
    "default",
    SessionState.IN_PROGRESS,
    Agent(),
    Environment("env_1", "sess_1", "default", permissions=Permissions(root=True)),
    Review.NONE,
    {},
    NOW,
    NOW,
)


class Reviewer(rpc.ReviewerServiceServicer):
    """Answers with what it was told to, after as many failures as it was told to."""

    def __init__(self) -> None:
        self.outcome = pb.Decision.OUTCOME_ALLOWED
        self.failures: list[grpc.StatusCode] = []
        self.asked: list[pb.ReviewActionRequest] = []

    async def ReviewAction(self, request, context):
        self.asked.append(request)
        if self.failures:
            await context.abort(self.failures.pop(0), "out of order")
        decision = pb.Decision(id="dec_1", outcome=self.outcome, reason="deletes everything")
        return pb.ReviewActionResponse(decision=decision)


@pytest.fixture
async def reviewer(tmp_path):
    server, reviewer = grpc.aio.server(), Reviewer()  # type: ignore[abstract]
    rpc.add_ReviewerServiceServicer_to_server(reviewer, server)
    server.add_insecure_port(f"unix:{tmp_path}/reviewer.sock")
    await server.start()
    yield reviewer
    await server.stop(None)


@pytest.fixture
async def reviews(reviewer, tmp_path):
    async with open_channel(f"unix:{tmp_path}/reviewer.sock") as channel:
        yield Reviews(channel)


async def test_an_allowed_command_is_asked_about_with_all_that_matters(reviews, reviewer):
    decision = await reviews.review(SESSION, ITEM, COMMAND)
    assert decision.allowed and decision.id == "dec_1"
    [asked] = reviewer.asked
    assert (asked.request_id, asked.turn_id, asked.mode) == ("cmd_1", "turn_1", 1)
    assert asked.permissions.root and not asked.permissions.dangerous
    assert asked.command.script == "rm -rf /" and asked.command.as_root
    assert (asked.command.cwd, asked.command.justification) == ("/tmp", "because")


async def test_a_refusal_is_a_decision(reviews, reviewer):
    reviewer.outcome = pb.Decision.OUTCOME_DENIED
    decision = await reviews.review(SESSION, ITEM, COMMAND)
    assert not decision.allowed and decision.reason == "deletes everything"


async def test_an_outcome_that_is_not_known_allows_nothing(reviews, reviewer):
    reviewer.outcome = pb.Decision.OUTCOME_UNSPECIFIED
    assert not (await reviews.review(SESSION, ITEM, COMMAND)).allowed


async def test_a_reviewer_that_comes_back_is_asked_again(reviews, reviewer):
    reviewer.failures = [grpc.StatusCode.UNAVAILABLE]
    assert (await reviews.review(SESSION, ITEM, COMMAND)).allowed
    assert len(reviewer.asked) == 2


async def test_a_reviewer_that_fails_is_no_verdict(reviews, reviewer):
    reviewer.failures = [grpc.StatusCode.INVALID_ARGUMENT]
    with pytest.raises(ReviewFailed, match="could not decide") as caught:
        await reviews.review(replace(SESSION, review=Review.AUTO_REVIEW), ITEM, COMMAND)
    assert "denied" not in caught.value.message and "risk" not in caught.value.message
