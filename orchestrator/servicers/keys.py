"""Owns the `KeyService` on the wire, which is the owner's alone."""

from typing import Any

import grpc

from orchestrator.errors import OwnerOnly
from orchestrator.servicers import messages
from orchestrator.servicers.requests import project
from orchestrator.sessions.specs import check_project
from orchestrator.store.keys import KeyStore
from orchestrator.store.pages import PageRequest
from workroom.errors import InvalidField
from workroom.orchestrator.v1 import keys_pb2 as pb
from workroom.orchestrator.v1 import keys_pb2_grpc as rpc
from workroom.rpc.auth import OWNER, current_principal

Context = grpc.aio.ServicerContext[Any, Any]

NAME_CHARS = 255


class KeyServicer(rpc.KeyServiceServicer):
    """Callers' keys for the owner."""

    def __init__(self, keys: KeyStore) -> None:
        self._keys = keys

    def register(self, server: grpc.aio.Server) -> None:
        rpc.add_KeyServiceServicer_to_server(self, server)

    async def CreateKey(
        self, request: pb.CreateKeyRequest, context: Context
    ) -> pb.CreateKeyResponse:
        _check_owner()
        check_project(project(request.project_id))
        if not 1 <= len(request.name) <= NAME_CHARS or not request.name.isprintable():
            raise InvalidField("name", f"must have 1 to {NAME_CHARS} printable characters")
        key, secret = await self._keys.create(project(request.project_id), request.name)
        return pb.CreateKeyResponse(key=messages.key(key), secret=secret)

    async def ListKeys(self, request: pb.ListKeysRequest, context: Context) -> pb.ListKeysResponse:
        _check_owner()
        wanted = PageRequest(request.page_size, request.page_token)
        page = await self._keys.page(current_principal().project_id, wanted)
        return pb.ListKeysResponse(
            keys=[messages.key(key) for key in page.entries], next_page_token=page.next_token
        )

    async def DeleteKey(
        self, request: pb.DeleteKeyRequest, context: Context
    ) -> pb.DeleteKeyResponse:
        _check_owner()
        await self._keys.remove(request.key_id)
        return pb.DeleteKeyResponse()


def _check_owner() -> None:
    if current_principal() != OWNER:
        raise OwnerOnly("only the owner may do this, over the orchestrator's own socket")
