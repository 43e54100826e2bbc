"""Translates `ReviewerService`: checks what may be asked, and turns values into messages."""

from typing import Any

import grpc

from reviewer.decisions import Follows, Mode, Permissions
from reviewer.records import DecisionRecord, ReviewRequest
from reviewer.reviews import Reviews
from reviewer.rules.classify import Action, Outcome
from reviewer.rules.paths import DEFAULT_CWD, DEFAULT_ROOTS, resolve
from reviewer.rules.syntax import MAX_SCRIPT_BYTES
from workroom.errors import InvalidField, NotSupported
from workroom.pages import number_of, page_size, token_for
from workroom.reviewer.v1 import reviewer_pb2 as pb
from workroom.reviewer.v1 import reviewer_pb2_grpc as rpc

Context = grpc.aio.ServicerContext[Any, Any]

MAX_ARGUMENT_BYTES = 2 * 1024 * 1024
"""Most bytes of a program's arguments together: what the kernel takes."""

_MAX_ID = 256
_MAX_ROOTS = 100
_MODES = {
    pb.REVIEW_MODE_UNSPECIFIED: Mode.NONE,
    pb.REVIEW_MODE_NONE: Mode.NONE,
    pb.REVIEW_MODE_AUTO_REVIEW: Mode.AUTO_REVIEW,
}
_MODE_MESSAGES = {
    Mode.NONE: pb.REVIEW_MODE_NONE,
    Mode.AUTO_REVIEW: pb.REVIEW_MODE_AUTO_REVIEW,
}
_VERDICTS = {
    Outcome.SAFE: pb.VERDICT_SAFE,
    Outcome.UNKNOWN: pb.VERDICT_UNKNOWN,
    Outcome.DANGEROUS: pb.VERDICT_DANGEROUS,
    Outcome.FORBIDDEN: pb.VERDICT_FORBIDDEN,
}
_OUTCOMES = {
    Follows.RUN: pb.Decision.OUTCOME_ALLOWED,
    Follows.FAIL: pb.Decision.OUTCOME_DENIED,
}


class ReviewerServicer(rpc.ReviewerServiceServicer):
    """Reviews over gRPC."""

    def __init__(self, reviews: Reviews) -> None:
        self._reviews = reviews

    def register(self, server: grpc.aio.Server) -> None:
        """Adds this service to a server."""
        rpc.add_ReviewerServiceServicer_to_server(self, server)

    async def ReviewAction(
        self, request: pb.ReviewActionRequest, context: Context
    ) -> pb.ReviewActionResponse:
        record = await self._reviews.review(review_request(request))
        return pb.ReviewActionResponse(decision=decision_message(record))

    async def GetDecision(
        self, request: pb.GetDecisionRequest, context: Context
    ) -> pb.GetDecisionResponse:
        record = await self._reviews.get(request.decision_id)
        return pb.GetDecisionResponse(decision=decision_message(record))

    async def ListDecisions(
        self, request: pb.ListDecisionsRequest, context: Context
    ) -> pb.ListDecisionsResponse:
        size = page_size(request.page_size)
        scope = f"decisions/{request.session_id}"
        before = number_of(scope, request.page_token)
        found = await self._reviews.page(request.session_id, before, size + 1)
        shown = found[:size]
        more = len(found) > size
        return pb.ListDecisionsResponse(
            decisions=[decision_message(record) for _, record in shown],
            next_page_token=token_for(scope, shown[-1][0]) if more else "",
        )


def review_request(message: pb.ReviewActionRequest) -> ReviewRequest:
    """Raises InvalidField, naming the field."""
    if not 1 <= len(message.request_id) <= 128:
        raise InvalidField("request_id", "must have 1 to 128 characters")
    for name in ("project_id", "session_id", "turn_id", "item_id"):
        if len(getattr(message, name)) > _MAX_ID:
            raise InvalidField(name, f"must have at most {_MAX_ID} characters")
    mode = _MODES.get(message.mode)
    if mode is None:
        raise InvalidField("mode", "is not a review mode; allowed: REVIEW_MODE_NONE")
    if mode is not Mode.NONE:
        raise NotSupported("mode", f"{mode} is not available in this version; allowed: none")
    return ReviewRequest(
        request_id=message.request_id,
        project_id=message.project_id or "default",
        session_id=message.session_id,
        turn_id=message.turn_id,
        item_id=message.item_id,
        mode=mode,
        action=_action(message),
        permissions=_permissions(message.permissions),
        justification=message.command.justification,
    )


def _action(message: pb.ReviewActionRequest) -> Action:
    if message.WhichOneof("action") != "command":
        raise InvalidField("command", "must be given")
    command = message.command
    cwd = resolve(command.cwd, DEFAULT_CWD) if command.cwd else DEFAULT_CWD
    match command.WhichOneof("program"):
        case "script":
            if len(command.script.encode()) > MAX_SCRIPT_BYTES:
                raise InvalidField("command.script", f"must have at most {MAX_SCRIPT_BYTES} bytes")
            return Action(script=command.script, cwd=cwd, as_root=command.as_root)
        case "argv":
            argv = tuple(command.argv.args)
            if not argv or not argv[0]:
                raise InvalidField("command.argv.args", "must begin with a program")
            if sum(len(word.encode()) for word in argv) > MAX_ARGUMENT_BYTES:
                problem = f"must have at most {MAX_ARGUMENT_BYTES} bytes together"
                raise InvalidField("command.argv.args", problem)
            return Action(argv=argv, cwd=cwd, as_root=command.as_root)
    raise InvalidField("command", "either argv or script must be given")


def _permissions(message: pb.Permissions) -> Permissions:
    roots = tuple(message.writable_roots)
    if len(roots) > _MAX_ROOTS:
        raise InvalidField("permissions.writable_roots", f"must be at most {_MAX_ROOTS}")
    if any(not root.startswith("/") for root in roots):
        raise InvalidField("permissions.writable_roots", "must be absolute paths")
    plain = tuple(resolve(root, "/") for root in roots)
    return Permissions(message.root, message.dangerous, plain or DEFAULT_ROOTS)


def decision_message(record: DecisionRecord) -> pb.Decision:
    """A decision for the wire."""
    message = pb.Decision(
        id=record.id,
        project_id=record.project_id,
        session_id=record.session_id,
        turn_id=record.turn_id,
        item_id=record.item_id,
        action_digest=record.action_digest,
        mode=_MODE_MESSAGES[record.mode],
        verdict=_VERDICTS[record.verdict],
        outcome=_OUTCOMES[record.outcome],
        reason=record.reason,
        rule_id=record.rule_id,
        matched_command=record.matched_command,
    )
    message.create_time.FromDatetime(record.create_time)
    return message
