"""Owns the `SessionService` on the wire."""

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import grpc

from orchestrator.agents import Caller
from orchestrator.servicers import messages, requests
from orchestrator.servicers.callers import caller
from orchestrator.sessions.sessions import Sessions
from orchestrator.store.pages import PageRequest
from orchestrator.store.reading import SessionReader
from workroom.orchestrator.v1 import sessions_pb2 as pb
from workroom.orchestrator.v1 import sessions_pb2_grpc as rpc
from workroom.rpc.auth import current_principal
from workroom.rpc.drain import Drain

Context = grpc.aio.ServicerContext[Any, Any]


class SessionServicer(rpc.SessionServiceServicer):
    """Sessions for callers."""

    def __init__(
        self,
        sessions: Sessions,
        reader: SessionReader,
        drain: Drain,
        *,
        anyone_may_name_endpoints: bool,
    ) -> None:
        self._sessions = sessions
        self._reader = reader
        self._drain = drain
        self._anyone_may_name_endpoints = anyone_may_name_endpoints

    def register(self, server: grpc.aio.Server) -> None:
        rpc.add_SessionServiceServicer_to_server(self, server)

    async def CreateSession(
        self, request: pb.CreateSessionRequest, context: Context
    ) -> pb.CreateSessionResponse:
        spec = requests.session_spec(request)
        key = requests.request_id(request.request_id, spec.project_id, "sessions", request)
        session, turn_id = await self._sessions.create(spec, key, self._caller())
        return pb.CreateSessionResponse(session=messages.session(session), turn_id=turn_id)

    async def GetSession(
        self, request: pb.GetSessionRequest, context: Context
    ) -> pb.GetSessionResponse:
        session = await self._reader.get(request.session_id)
        return pb.GetSessionResponse(session=messages.session(session))

    async def ListSessions(
        self, request: pb.ListSessionsRequest, context: Context
    ) -> pb.ListSessionsResponse:
        page = await self._reader.page(
            current_principal().project_id,
            PageRequest(request.page_size, request.page_token),
            dict(request.metadata),
            request.agent_id,
        )
        return pb.ListSessionsResponse(
            sessions=[messages.session(session) for session in page.entries],
            next_page_token=page.next_token,
        )

    async def UpdateSession(
        self, request: pb.UpdateSessionRequest, context: Context
    ) -> pb.UpdateSessionResponse:
        session = await self._sessions.update(request.session_id, requests.session_change(request))
        return pb.UpdateSessionResponse(session=messages.session(session))

    async def DeleteSession(
        self, request: pb.DeleteSessionRequest, context: Context
    ) -> pb.DeleteSessionResponse:
        await self._sessions.delete(request.session_id)
        return pb.DeleteSessionResponse()

    async def SubmitInput(
        self, request: pb.SubmitInputRequest, context: Context
    ) -> pb.SubmitInputResponse:
        scope = f"turns/{request.session_id}"
        project_id = current_principal().project_id
        key = requests.request_id(request.request_id, project_id, scope, request)
        parts = requests.content(request.input)
        turn = await self._sessions.submit(request.session_id, parts, key)
        return pb.SubmitInputResponse(turn=messages.turn(turn))

    async def CancelTurn(
        self, request: pb.CancelTurnRequest, context: Context
    ) -> pb.CancelTurnResponse:
        turns = await self._sessions.cancel(request.session_id)
        return pb.CancelTurnResponse(turns=[messages.turn(turn) for turn in turns])

    async def GetTurn(self, request: pb.GetTurnRequest, context: Context) -> pb.GetTurnResponse:
        turn = await self._reader.get_turn(request.turn_id)
        return pb.GetTurnResponse(turn=messages.turn(turn))

    async def ListTurns(
        self, request: pb.ListTurnsRequest, context: Context
    ) -> pb.ListTurnsResponse:
        wanted = PageRequest(request.page_size, request.page_token)
        page = await self._reader.list_turns(request.session_id, wanted)
        return pb.ListTurnsResponse(
            turns=[messages.turn(turn) for turn in page.entries], next_page_token=page.next_token
        )

    async def ListItems(
        self, request: pb.ListItemsRequest, context: Context
    ) -> pb.ListItemsResponse:
        wanted = PageRequest(request.page_size, request.page_token)
        page = await self._reader.list_items(request.session_id, request.turn_id, wanted)
        return pb.ListItemsResponse(
            items=[messages.item(item) for item in page.entries], next_page_token=page.next_token
        )

    async def WatchEvents(
        self, request: pb.WatchEventsRequest, context: Context
    ) -> AsyncIterator[pb.WatchEventsResponse]:
        events = self._sessions.watch(
            request.session_id,
            request.after_sequence_number,
            until_idle=request.until_idle,
            durable_only=request.durable_only,
        )
        async with self._drain.interrupting(), aclosing(events):
            async for event in events:
                yield pb.WatchEventsResponse(event=messages.event(event))

    async def ListArtifacts(
        self, request: pb.ListArtifactsRequest, context: Context
    ) -> pb.ListArtifactsResponse:
        wanted = PageRequest(request.page_size, request.page_token)
        page = await self._reader.list_artifacts(request.session_id, wanted)
        return pb.ListArtifactsResponse(
            artifacts=[messages.artifact(artifact) for artifact in page.entries],
            next_page_token=page.next_token,
        )

    async def ReadArtifact(
        self, request: pb.ReadArtifactRequest, context: Context
    ) -> AsyncIterator[pb.ReadArtifactResponse]:
        async for data in self._sessions.read_artifact(request.artifact_id):
            yield pb.ReadArtifactResponse(data=data)
        yield pb.ReadArtifactResponse(end=True)

    def _caller(self) -> Caller:
        return caller(anyone_may_name_endpoints=self._anyone_may_name_endpoints)
