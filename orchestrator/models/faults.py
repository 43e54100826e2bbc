"""Owns the judgement of what went wrong at a model server, and the words for it.

Every message says what failed, which model at which base URL, what the server said, and the
cure. Neither key nor credentials of the URL ever appear.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import TypeVar

from orchestrator.models import wire
from orchestrator.models.errors import (
    ContextLengthExceeded,
    ModelAuthenticationFailed,
    ModelError,
    ModelNotFound,
    ModelProtocolMismatch,
    ModelQuotaExhausted,
    ModelRateLimited,
    ModelRequestRefused,
    ModelServerFailed,
    ModelStreamBroken,
    ModelTimeout,
    ModelUnreachable,
)

MAX_SERVER_TEXT = 500
"""Characters of a server's own message that are passed on."""

_QUOTA = {
    "insufficient_quota",
    "billing_not_active",
    "billing_hard_limit_reached",
    "credit_balance_exhausted",
    "usage_limit_reached",
    "usage_limit_exceeded",
}
_RATE = {"rate_limit_exceeded", "rate_limit_error", "too_many_requests", "slow_down"}
_OWN_FAULT = {"server_error", "server_overloaded", "overloaded_error", "internal_error"}
_KEY = {"invalid_api_key", "authentication_error", "permission_error"}
_REFUSED = {"invalid_request_error", "invalid_prompt", "cyber_policy", "content_policy_violation"}
_CONTEXT = {"context_length_exceeded", "exceed_context_size_error"}
_CONTEXT_WORDS = re.compile(
    r"context[ _](length|window|size)|maximum model length|max_model_len"
    r"|(prompt|input|request) is too (long|large)|too many (input )?tokens",
    re.IGNORECASE,
)
_NO_MODEL_WORDS = re.compile(
    r"\bmodel\b.*(not (been )?found|does not exist|doesn't exist|unknown|not available"
    r"|not loaded|not supported by this server)"
    r"|(no such|unknown|invalid) model",
    re.IGNORECASE | re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Detail:
    """What a server said about an error, out of whatever shape it used."""

    message: str = ""
    code: str = ""
    type: str = ""
    param: str = ""
    status: int | None = None

    @property
    def names(self) -> set[str]:
        return {self.code, self.type}


def read_detail(body: object) -> Detail:
    """Read `{"error": {…}}`, `{"error": "…"}`, a flat error, `{"detail": …}` or a list of one."""
    if isinstance(body, list) and body:
        body = body[0]
    if isinstance(body, str):
        return Detail(message=body)
    if not isinstance(body, Mapping):
        return Detail()
    error = body.get("error")
    if isinstance(error, str):
        return Detail(message=error, code=wire.text(body, "code"))
    source = error if isinstance(error, Mapping) else body
    message = wire.text(source, "message")
    if not message and "detail" in source:
        detail = source["detail"]
        message = detail if isinstance(detail, str) else json.dumps(detail)
    kind = wire.text(source, "type")
    return Detail(
        message=message,
        code=wire.text(source, "code"),
        type="" if kind == "error" else kind,
        param=wire.text(source, "param"),
        status=wire.number(source, "code") or wire.number(source, "status"),
    )


def read_retry_after(headers: Mapping[str, str]) -> timedelta | None:
    """What `retry-after-ms` or `retry-after` (seconds or a date) asks for, if it is sensible."""
    try:
        if milliseconds := headers.get("retry-after-ms"):
            return max(timedelta(milliseconds=float(milliseconds)), timedelta())
    except (ValueError, OverflowError):
        pass
    value = headers.get("retry-after", "")
    try:
        return max(timedelta(seconds=float(value)), timedelta())
    except (ValueError, OverflowError):
        pass
    try:
        until = parsedate_to_datetime(value)
        now = parsedate_to_datetime(headers["date"]) if "date" in headers else datetime.now(UTC)
        return max(until - now, timedelta())
    except (ValueError, TypeError):
        return None


_NOTHING_SAID = Detail()
E = TypeVar("E", bound=ModelError)


class Faults:
    """Makes the errors of calls to one model at one server."""

    def __init__(self, base_url: str, model: str, secret: str = "") -> None:
        self._base_url = base_url
        self._model = model
        self._secret = secret

    def unreachable(self, problem: str, *, retryable: bool = True) -> ModelUnreachable:
        return self._make(
            ModelUnreachable,
            "the model server cannot be reached",
            problem,
            "check that it runs and that its address (--base-url, ORCHESTRATOR_MODEL_BASE_URL) is "
            "right",
            retryable=retryable,
        )

    def broken(self, problem: str) -> ModelStreamBroken:
        return self._make(
            ModelStreamBroken,
            "the model server's stream broke before the answer was complete",
            problem,
            "see the server's log",
        )

    def silent(self, limit: timedelta) -> ModelTimeout:
        return self._make(
            ModelTimeout,
            f"the model server sent nothing for {limit.total_seconds():g} s",
            "",
            "check its load, or raise the idle limit",
        )

    def endless(self, limit: timedelta) -> ModelTimeout:
        return self._make(
            ModelTimeout,
            f"the model's answer was not complete after {limit.total_seconds():g} s",
            "",
            "set max_output_tokens, or raise the answer limit",
            retryable=False,
        )

    def mismatch(self, problem: str, status: int | None = None) -> ModelProtocolMismatch:
        return self._make(
            ModelProtocolMismatch,
            "what answers there does not speak the configured protocol",
            problem,
            "check ORCHESTRATOR_MODEL_BASE_URL (it usually ends in /v1) and "
            "ORCHESTRATOR_MODEL_PROTOCOL (responses or chat)",
            Detail(status=status),
        )

    def from_answer(self, status: int, headers: Mapping[str, str], body: bytes) -> ModelError:
        """The error that a response of status 300 or above stands for."""
        said = body.decode("utf-8", "replace")
        try:
            detail = read_detail(json.loads(said))
        except ValueError:
            detail = Detail(message="" if said.lstrip().startswith("<") else said.strip())
        error = self._judge(detail, status, read_retry_after(headers))
        if headers.get("x-should-retry") == "false":
            error.retryable = False
        return error

    def from_error(self, body: object) -> ModelError:
        """The error that an error object inside a 200 answer stands for."""
        detail = read_detail(body)
        plausible = detail.status is not None and 400 <= detail.status < 600
        return self._judge(detail, detail.status if plausible else None, None)

    def _judge(
        self, detail: Detail, status: int | None, retry_after: timedelta | None
    ) -> ModelError:
        detail = Detail(detail.message, detail.code, detail.type, detail.param, status)
        if detail.names & _QUOTA or status == 402:
            kind: type[ModelError] = ModelQuotaExhausted
        elif _is_context_overflow(detail):
            kind = ContextLengthExceeded
        elif _is_unknown_model(detail):
            kind = ModelNotFound
        elif status in (401, 403) or (status is None and detail.names & _KEY):
            kind = ModelAuthenticationFailed
        elif status is not None and (status < 400 or status in (404, 405)):
            return self.mismatch(detail.message, status)
        elif status == 429 or detail.names & _RATE:
            kind = ModelRateLimited
        elif status in (408, 409, 425) or (status or 0) >= 500 or detail.names & _OWN_FAULT:
            kind = ModelServerFailed
        elif status is not None or detail.names & _REFUSED:
            kind = ModelRequestRefused
        else:
            kind = ModelServerFailed
        what, cure = _WORDS[kind]
        return self._make(kind, what, detail.message, cure, detail, retry_after=retry_after)

    def _make(
        self,
        kind: type[E],
        what: str,
        said: str,
        cure: str,
        detail: Detail = _NOTHING_SAID,
        *,
        retry_after: timedelta | None = None,
        retryable: bool | None = None,
    ) -> E:
        where = f"model {self._model!r} at {self._base_url}"
        if detail.status is not None:
            where += f", HTTP {detail.status}"
        said = self._without_secret(said).strip()[:MAX_SERVER_TEXT]
        metadata = {"model": self._model, "base_url": self._base_url, "param": detail.param}
        metadata["status"] = "" if detail.status is None else str(detail.status)
        metadata["server_code"] = self._without_secret(detail.code or detail.type)
        return kind(
            f"{what} ({where})" + (f": {said}" if said else "") + f"; {cure}",
            retry_after=retry_after,
            retryable=retryable,
            **{key: value for key, value in metadata.items() if value},
        )

    def _without_secret(self, said: str) -> str:
        return said.replace(self._secret, "[key]") if self._secret else said


def _is_context_overflow(detail: Detail) -> bool:
    if detail.names & _CONTEXT or detail.status == 413:
        return True
    return detail.status in (None, 400, 422) and bool(_CONTEXT_WORDS.search(detail.message))


def _is_unknown_model(detail: Detail) -> bool:
    if "model_not_found" in detail.names:
        return True
    return detail.status in (None, 400, 404, 422) and bool(_NO_MODEL_WORDS.search(detail.message))


_WORDS: dict[type[ModelError], tuple[str, str]] = {
    ModelQuotaExhausted: (
        "the account behind the model key has nothing left",
        "add credit or use another key",
    ),
    ContextLengthExceeded: (
        "the request is larger than the model's context",
        "compact the session, send less, or use a model with a larger context",
    ),
    ModelNotFound: (
        "the model server has no such model",
        "set ORCHESTRATOR_MODEL, --model or the session's model to one that it has",
    ),
    ModelAuthenticationFailed: (
        "the model server refused the key",
        "set ORCHESTRATOR_MODEL_API_KEY to a key that may use this model",
    ),
    ModelRateLimited: (
        "the model server limits the rate of requests",
        "send fewer at once, or raise the limit there",
    ),
    ModelServerFailed: ("the model server failed", "try again later, or see the server's log"),
    ModelRequestRefused: (
        "the model server refused the request",
        "change or leave out what it names",
    ),
}
