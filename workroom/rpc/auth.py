"""Owns who may call: a listener's key check, and the principal that a call runs as."""

import asyncio
import hashlib
import hmac
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import timedelta

import grpc
import structlog

from workroom.errors import Unauthenticated, WorkroomError
from workroom.rpc.handlers import Handler, raising

AUTHORIZATION = "authorization"

VERIFY_LIMIT = timedelta(seconds=10)
"""How long a verifier may take before the call is refused."""

_EXEMPT = (
    "/grpc.health.v1.Health/",
    "/grpc.reflection.v1.ServerReflection/",
    "/grpc.reflection.v1alpha.ServerReflection/",
)
_KEY_LIMIT = 4096

Continuation = Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]]


@dataclass(frozen=True)
class Principal:
    """Whom a call is made for. `name` appears in logs."""

    name: str
    project_id: str = "default"


Verifier = Callable[[str], Awaitable[Principal | None]]
"""Takes a key and returns whose it is, or None. It must compare in constant time, as
`token_verifier` does, or look keys up by a digest of them."""

OWNER = Principal("owner")
"""Who calls over the owner's unix socket, or with a client certificate."""

_principal: ContextVar[Principal | None] = ContextVar("workroom_principal", default=None)


class VerifierUnavailable(WorkroomError):
    """Keys cannot be checked at the moment."""

    code = grpc.StatusCode.UNAVAILABLE
    reason = "KEY_CHECK_UNAVAILABLE"


def current_principal() -> Principal:
    """Whom the call being served is made for. Raises `Unauthenticated` outside of one."""
    principal = _principal.get()
    if principal is None:
        raise Unauthenticated("no caller is known here")
    return principal


def token_verifier(token: str, principal: Principal = OWNER) -> Verifier:
    """Accepts exactly `token`, compared in constant time. Raises ValueError for an empty one."""
    if not token:
        raise ValueError("an empty token would let everybody in")
    expected = hashlib.sha256(token.encode()).digest()

    async def verify(key: str) -> Principal | None:
        given = hashlib.sha256(key.encode()).digest()
        return principal if hmac.compare_digest(given, expected) else None

    return verify


class AuthInterceptor(grpc.aio.ServerInterceptor):
    """Refuses a call before its first message is read, unless its key is known.

    With no verifier every caller is `OWNER`: for a unix socket that only its owner can open, or
    for mutual TLS. One of these belongs to one listener and its own server, so that no call can
    come under another listener's rule. Health and reflection are exempt.
    """

    def __init__(self, verifier: Verifier | None) -> None:
        self._verifier = verifier

    async def intercept_service(
        self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails
    ) -> Handler | None:
        """Binds the principal, or answers UNAUTHENTICATED."""
        if not handler_call_details.method.startswith(_EXEMPT):
            try:
                principal = await self._caller(handler_call_details)
            except WorkroomError as error:
                return raising(error)
            _principal.set(principal)
            structlog.contextvars.bind_contextvars(principal=principal.name)
        return await continuation(handler_call_details)

    async def _caller(self, details: grpc.HandlerCallDetails) -> Principal:
        if self._verifier is None:
            return OWNER
        key = _bearer(details)
        try:
            async with asyncio.timeout(VERIFY_LIMIT.total_seconds()):
                principal = await self._verifier(key)
        except TimeoutError:
            raise VerifierUnavailable("the key could not be checked in time") from None
        if principal is None:
            raise Unauthenticated("the key is not known")
        return principal


def _bearer(details: grpc.HandlerCallDetails) -> str:
    values = [value for key, value in details.invocation_metadata or () if key == AUTHORIZATION]
    if not values:
        raise Unauthenticated("a key is needed: metadata `authorization: Bearer KEY`")
    scheme, _, key = str(values[0]).partition(" ")
    if len(values) > 1 or scheme.lower() != "bearer" or not 0 < len(key.strip()) <= _KEY_LIMIT:
        raise Unauthenticated("metadata `authorization` must be one `Bearer KEY`")
    return key.strip()
