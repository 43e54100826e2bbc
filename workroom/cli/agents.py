"""`workroom agents`: agents that are kept for sessions to begin with."""

import asyncio
from pathlib import Path

import click

from workroom.cli.owner import owner, pairs, print_json, print_table, time_of
from workroom.cli.specs import agent_of
from workroom.orchestrator.v1 import agents_pb2 as pb
from workroom.rpc.channel import translate_errors

as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON lines.")


@click.group()
def agents() -> None:
    """Create, list, show and delete saved agents. The services must be up."""


@agents.command()
@click.argument("name")
@click.option("--model", default="", help="The model's name. [default: ORCHESTRATOR_MODEL]")
@click.option("--instructions", default="", help="Added to the base instructions.")
@click.option("--script", type=click.Path(path_type=Path), help="Play a script, not a model.")
@click.option("--metadata", multiple=True, metavar="KEY=VALUE", help="Attach this. Repeatable.")
@as_json
def create(
    name: str,
    model: str,
    instructions: str,
    script: Path | None,
    metadata: tuple[str, ...],
    as_json: bool,
) -> None:
    """Keep an agent called NAME and print its id."""
    request = pb.CreateAgentRequest(
        name=name,
        agent=agent_of(model, instructions, script),
        metadata=pairs(metadata, "metadata"),
    )

    async def work() -> pb.SavedAgent:
        async with owner() as client:
            with translate_errors():
                return (await client.agents.CreateAgent(request)).agent

    agent = asyncio.run(work())
    if as_json:
        print_json(agent)
    else:
        click.echo(agent.id)


@agents.command("list")
@as_json
def list_agents(as_json: bool) -> None:
    """List the agents, newest first."""

    async def work() -> list[pb.SavedAgent]:
        found: list[pb.SavedAgent] = []
        token = ""
        async with owner() as client:
            while True:
                request = pb.ListAgentsRequest(page_size=100, page_token=token)
                with translate_errors():
                    page = await client.agents.ListAgents(request)
                found.extend(page.agents)
                token = page.next_page_token
                if not token:
                    return found

    found = asyncio.run(work())
    if as_json:
        for agent in found:
            print_json(agent)
    else:
        rows = [(a.id, time_of(a.update_time), _model(a.agent), a.name) for a in found]
        print_table(("ID", "CHANGED", "MODEL", "NAME"), rows)


@agents.command()
@click.argument("agent_id")
@as_json
def show(agent_id: str, as_json: bool) -> None:
    """Show the agent with id AGENT_ID."""

    async def work() -> pb.SavedAgent:
        async with owner() as client:
            with translate_errors():
                request = pb.GetAgentRequest(agent_id=agent_id)
                return (await client.agents.GetAgent(request)).agent

    agent = asyncio.run(work())
    if as_json:
        print_json(agent)
        return
    rows = [
        ("id", agent.id),
        ("name", agent.name),
        ("model", _model(agent.agent)),
        ("instructions", agent.agent.instructions),
        ("created", time_of(agent.create_time)),
        ("changed", time_of(agent.update_time)),
        *((f"metadata.{key}", value) for key, value in sorted(agent.metadata.items())),
    ]
    print_table(("FIELD", "VALUE"), rows)


@agents.command()
@click.argument("agent_id")
def delete(agent_id: str) -> None:
    """Delete the agent with id AGENT_ID; sessions that began with it stay as they are."""

    async def work() -> None:
        async with owner() as client:
            with translate_errors():
                await client.agents.DeleteAgent(pb.DeleteAgentRequest(agent_id=agent_id))

    asyncio.run(work())


def _model(agent: pb.Agent) -> str:
    if agent.provider.HasField("script"):
        return f"scripted:{agent.provider.script.name}"
    return agent.model
