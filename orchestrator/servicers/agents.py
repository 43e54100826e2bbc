"""Owns the `AgentService` on the wire."""

from typing import Any

import grpc

from orchestrator.agents import Agents
from orchestrator.servicers import messages, requests
from orchestrator.servicers.callers import caller
from orchestrator.store.agents import AgentStore
from orchestrator.store.pages import PageRequest
from workroom.orchestrator.v1 import agents_pb2 as pb
from workroom.orchestrator.v1 import agents_pb2_grpc as rpc
from workroom.rpc.auth import current_principal

Context = grpc.aio.ServicerContext[Any, Any]


class AgentServicer(rpc.AgentServiceServicer):
    """Saved agents for callers."""

    def __init__(
        self, agents: Agents, store: AgentStore, *, anyone_may_name_endpoints: bool
    ) -> None:
        self._agents = agents
        self._store = store
        self._anyone_may_name_endpoints = anyone_may_name_endpoints

    def register(self, server: grpc.aio.Server) -> None:
        rpc.add_AgentServiceServicer_to_server(self, server)

    async def CreateAgent(
        self, request: pb.CreateAgentRequest, context: Context
    ) -> pb.CreateAgentResponse:
        project_id = requests.project(request.project_id)
        key = requests.request_id(request.request_id, project_id, "agents", request)
        saved = await self._agents.create(
            project_id,
            requests.agent_spec(request),
            key,
            caller(anyone_may_name_endpoints=self._anyone_may_name_endpoints),
        )
        return pb.CreateAgentResponse(agent=messages.saved_agent(saved))

    async def GetAgent(self, request: pb.GetAgentRequest, context: Context) -> pb.GetAgentResponse:
        saved = await self._store.get(request.agent_id)
        return pb.GetAgentResponse(agent=messages.saved_agent(saved))

    async def ListAgents(
        self, request: pb.ListAgentsRequest, context: Context
    ) -> pb.ListAgentsResponse:
        wanted = PageRequest(request.page_size, request.page_token)
        page = await self._store.page(current_principal().project_id, wanted)
        return pb.ListAgentsResponse(
            agents=[messages.saved_agent(saved) for saved in page.entries],
            next_page_token=page.next_token,
        )

    async def UpdateAgent(
        self, request: pb.UpdateAgentRequest, context: Context
    ) -> pb.UpdateAgentResponse:
        saved = await self._agents.update(
            request.agent_id,
            requests.agent_spec(request),
            frozenset(request.update_mask.paths),
            caller(anyone_may_name_endpoints=self._anyone_may_name_endpoints),
        )
        return pb.UpdateAgentResponse(agent=messages.saved_agent(saved))

    async def DeleteAgent(
        self, request: pb.DeleteAgentRequest, context: Context
    ) -> pb.DeleteAgentResponse:
        await self._store.remove(request.agent_id)
        return pb.DeleteAgentResponse()
