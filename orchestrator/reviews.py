"""Owns asking the reviewer about a command, and telling its refusals from its own failures."""

import asyncio
from dataclasses import dataclass
from datetime import timedelta

import grpc

from orchestrator.records import CommandExecution, Item, Review, Session
from workroom.errors import WorkroomError
from workroom.reviewer.v1 import reviewer_pb2 as pb
from workroom.reviewer.v1 import reviewer_pb2_grpc as rpc
from workroom.rpc.status import from_rpc_error

REVIEW_TIME = timedelta(seconds=90)
"""Of one command's review, repeated calls included."""
FIRST_PAUSE = timedelta(milliseconds=200)

_MODES = {
    Review.NONE: pb.REVIEW_MODE_NONE,
    Review.AUTO_REVIEW: pb.REVIEW_MODE_AUTO_REVIEW,
}


class ReviewFailed(WorkroomError):
    """The reviewer could not decide. That is no verdict on the command; it does not run."""

    code = grpc.StatusCode.UNAVAILABLE
    reason = "REVIEW_FAILED"


@dataclass(frozen=True, slots=True)
class Decision:
    """What the reviewer decided. `reason` is fit for the model and its user."""

    id: str
    allowed: bool
    reason: str = ""
    rule_id: str = ""
    matched_command: str = ""


class Reviews:
    """Reviews commands."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub = rpc.ReviewerServiceStub(channel)

    async def review(self, session: Session, item: Item, command: CommandExecution) -> Decision:
        """The decision on the command of `item`; asking again gets the same one.

        A reviewer that is away is asked again until the time for a review is over. Errors:
        `ReviewFailed`; nothing else is ever taken for consent.
        """
        request = _request(session, item, command)
        try:
            async with asyncio.timeout(REVIEW_TIME.total_seconds()):
                answer = await self._ask(request)
        except TimeoutError:
            raise ReviewFailed(
                f"the reviewer did not decide within {REVIEW_TIME.total_seconds():g} s; "
                "the command was not run",
                item_id=item.id,
            ) from None
        decision = answer.decision
        return Decision(
            id=decision.id,
            allowed=decision.outcome == pb.Decision.OUTCOME_ALLOWED,
            reason=decision.reason,
            rule_id=decision.rule_id,
            matched_command=decision.matched_command,
        )

    async def _ask(self, request: pb.ReviewActionRequest) -> pb.ReviewActionResponse:
        pause = FIRST_PAUSE.total_seconds()
        while True:
            try:
                return await self._stub.ReviewAction(request, timeout=REVIEW_TIME.total_seconds())
            except grpc.aio.AioRpcError as failure:
                error = from_rpc_error(failure)
                if error.code is not grpc.StatusCode.UNAVAILABLE:
                    raise ReviewFailed(
                        f"the reviewer could not decide: {error.message}; the command was not run",
                        item_id=request.item_id,
                        cause=error.reason,
                    ) from failure
            await asyncio.sleep(pause)
            pause = min(pause * 2, 5.0)


def _request(session: Session, item: Item, command: CommandExecution) -> pb.ReviewActionRequest:
    permissions = session.environment.permissions
    return pb.ReviewActionRequest(
        request_id=item.id,
        project_id=session.project_id,
        session_id=session.id,
        turn_id=item.turn_id,
        item_id=item.id,
        mode=_MODES[session.review],
        permissions=pb.Permissions(root=permissions.root, dangerous=permissions.dangerous),
        command=pb.CommandAction(
            script=command.command,
            cwd=command.cwd,
            as_root=command.as_root,
            justification=command.justification,
        ),
    )
