"""Owns how policies, attachments and traffic are written on the wire, and policies read."""

from typing import Any

from egress_proxy.attachments import Attachment
from egress_proxy.policy import Access, Decision, Effect, Policy
from egress_proxy.policy_texts import PolicyTexts, RuleTexts, parse_policy, policy_texts
from egress_proxy.traffic import Filter, Kind, Record
from workroom.egress.v1 import egress_pb2 as pb
from workroom.errors import InvalidField

_ACCESS = {
    pb.Policy.ACCESS_UNSPECIFIED: Access.DISABLED,
    pb.Policy.ACCESS_DISABLED: Access.DISABLED,
    pb.Policy.ACCESS_RESTRICTED: Access.RESTRICTED,
    pb.Policy.ACCESS_ENABLED: Access.ENABLED,
}
_ACCESS_MESSAGES = {
    Access.DISABLED: pb.Policy.ACCESS_DISABLED,
    Access.RESTRICTED: pb.Policy.ACCESS_RESTRICTED,
    Access.ENABLED: pb.Policy.ACCESS_ENABLED,
}
_EFFECTS: dict[Any, Effect] = {
    pb.EFFECT_ALLOW: Effect.ALLOW,
    pb.EFFECT_ASK: Effect.ASK,
    pb.EFFECT_DENY: Effect.DENY,
}
_EFFECT_MESSAGES = {effect: message for message, effect in _EFFECTS.items()}
_KINDS: dict[Any, Kind] = {
    pb.TrafficRecord.KIND_CONNECTION: Kind.CONNECTION,
    pb.TrafficRecord.KIND_REQUEST: Kind.REQUEST,
    pb.TrafficRecord.KIND_DNS_QUERY: Kind.DNS_QUERY,
}
_KIND_MESSAGES = {kind: message for message, kind in _KINDS.items()}


def policy_of(message: pb.Policy, field: str = "policy") -> Policy:
    """Raises InvalidField, with the field under `field`."""
    access = _ACCESS.get(message.access)
    if access is None:
        raise InvalidField(
            f"{field}.access",
            "is not known; allowed: ACCESS_DISABLED, ACCESS_RESTRICTED, ACCESS_ENABLED",
        )
    rules = tuple(
        RuleTexts(
            _EFFECTS[rule.effect].value if rule.effect in _EFFECTS else "",
            tuple(rule.hosts),
            tuple(rule.ports),
            tuple(rule.methods),
            tuple(rule.paths),
        )
        for rule in message.rules
    )
    texts = PolicyTexts(
        access.value, tuple(message.allowed_domains), tuple(message.blocked_domains), rules
    )
    return parse_policy(texts, field)


def policy_message(policy: Policy) -> pb.Policy:
    """A policy for the wire."""
    texts = policy_texts(policy)
    return pb.Policy(
        access=_ACCESS_MESSAGES[policy.access],
        allowed_domains=texts.allowed_domains,
        blocked_domains=texts.blocked_domains,
        rules=[
            pb.Rule(
                effect=_EFFECT_MESSAGES[Effect(rule.effect)],
                hosts=rule.hosts,
                ports=rule.ports,
                methods=rule.methods,
                paths=rule.paths,
            )
            for rule in texts.rules
        ],
    )


def attachment_message(attachment: Attachment, *, captured: bool) -> pb.Attachment:
    """An attachment for the wire."""
    wanted = attachment.wanted
    message = pb.Attachment(
        container_id=wanted.container_id,
        project_id=wanted.project_id,
        policy=policy_message(wanted.policy),
        bound=policy_message(wanted.bound) if wanted.bound is not None else None,
        session_id=wanted.session_id,
        revision=attachment.revision,
        captured=captured,
    )
    message.create_time.FromDatetime(attachment.create_time)
    message.update_time.FromDatetime(attachment.update_time)
    return message


def decision_message(decision: Decision) -> pb.Decision:
    """A decision for the wire."""
    return pb.Decision(
        effect=_EFFECT_MESSAGES[decision.effect], rule=decision.rule, reason=decision.reason
    )


def filter_of(message: pb.TrafficFilter) -> Filter:
    """Raises InvalidField for an effect or kind that is not known."""
    for name, found, known in (
        ("effects", message.effects, _EFFECTS),
        ("kinds", message.kinds, _KINDS),
    ):
        for number, each in enumerate(found):
            if each not in known:
                raise InvalidField(f"filter.{name}[{number}]", "is not known")
    return Filter(
        message.container_id,
        message.session_id,
        message.project_id,
        tuple(_EFFECTS[each] for each in message.effects),
        tuple(_KINDS[each] for each in message.kinds),
    )


def record_message(record: Record) -> pb.TrafficRecord:
    """A traffic record for the wire."""
    attempt, ending = record.attempt, record.ending
    message = pb.TrafficRecord(
        id=record.id,
        change=record.change,
        container_id=attempt.owner.container_id,
        project_id=attempt.owner.project_id,
        session_id=attempt.owner.session_id,
        kind=_KIND_MESSAGES[attempt.kind],
        decision=decision_message(attempt.decision),
        policy_revision=attempt.owner.policy_revision,
        protocol=attempt.protocol,
        host=attempt.host,
        port=attempt.port,
        requested_address=attempt.requested_address,
        dialled_address=attempt.dialled_address,
        method=attempt.method,
        path=attempt.path,
        status=ending.status,
        query_type=attempt.query_type,
        state=pb.TrafficRecord.STATE_OPEN
        if record.duration is None
        else pb.TrafficRecord.STATE_ENDED,
        ending=ending.how,
        sent_bytes=ending.sent_bytes,
        received_bytes=ending.received_bytes,
    )
    message.create_time.FromDatetime(record.create_time)
    if record.duration is not None:
        message.duration.FromTimedelta(record.duration)
    return message
