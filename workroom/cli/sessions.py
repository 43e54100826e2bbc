"""`workroom sessions`: conversations that go on whether anybody looks or not."""

import asyncio
from pathlib import Path

import click

from workroom.cli.display import Display, usage_line
from workroom.cli.owner import owner, pairs, print_json, print_table, time_of
from workroom.cli.specs import agent_of
from workroom.orchestrator.v1 import sessions_pb2 as pb
from workroom.orchestrator.v1 import turns_pb2
from workroom.rpc.channel import translate_errors

as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON lines.")


@click.group()
def sessions() -> None:
    """Create, list, show, watch and delete sessions. The services must be up."""


@sessions.command()
@click.argument("prompt", default="")
@click.option("--agent", "agent_id", default="", help="A saved agent to begin with.")
@click.option("--model", default="", help="The model's name. [default: ORCHESTRATOR_MODEL]")
@click.option("--instructions", default="", help="Added to the base instructions.")
@click.option("--script", type=click.Path(path_type=Path), help="Play a script, not a model.")
@click.option("--image", default="", help="The container's image. [default: base]")
@click.option("--metadata", multiple=True, metavar="KEY=VALUE", help="Attach this. Repeatable.")
@as_json
def create(
    prompt: str,
    agent_id: str,
    model: str,
    instructions: str,
    script: Path | None,
    image: str,
    metadata: tuple[str, ...],
    as_json: bool,
) -> None:
    """Create a session, with PROMPT as its first input, and print its id."""
    request = pb.CreateSessionRequest(
        agent_id=agent_id,
        agent=agent_of(model, instructions, script),
        metadata=pairs(metadata, "metadata"),
    )
    request.environment.image = image
    if prompt:
        request.input.add(text=prompt)

    async def work() -> pb.Session:
        async with owner() as client:
            with translate_errors():
                return (await client.sessions.CreateSession(request)).session

    session = asyncio.run(work())
    if as_json:
        print_json(session)
    else:
        click.echo(session.id)


@sessions.command("list")
@click.option("--agent", "agent_id", default="", help="Only those of this saved agent.")
@click.option("--metadata", multiple=True, metavar="KEY=VALUE", help="Only with this. Repeatable.")
@as_json
def list_sessions(agent_id: str, metadata: tuple[str, ...], as_json: bool) -> None:
    """List the sessions, newest first."""
    wanted = pairs(metadata, "metadata")

    async def work() -> list[pb.Session]:
        found: list[pb.Session] = []
        token = ""
        async with owner() as client:
            while True:
                request = pb.ListSessionsRequest(
                    page_size=100, page_token=token, metadata=wanted, agent_id=agent_id
                )
                with translate_errors():
                    page = await client.sessions.ListSessions(request)
                found.extend(page.sessions)
                token = page.next_page_token
                if not token:
                    return found

    found = asyncio.run(work())
    if as_json:
        for session in found:
            print_json(session)
    else:
        rows = [
            (s.id, _state(s.state), time_of(s.last_active_time), s.environment.image, s.agent.model)
            for s in found
        ]
        print_table(("ID", "STATE", "ACTIVE", "IMAGE", "MODEL"), rows)


@sessions.command()
@click.argument("session_id")
@as_json
def show(session_id: str, as_json: bool) -> None:
    """Show the session with id SESSION_ID."""

    async def work() -> pb.Session:
        async with owner() as client:
            with translate_errors():
                request = pb.GetSessionRequest(session_id=session_id)
                return (await client.sessions.GetSession(request)).session

    session = asyncio.run(work())
    if as_json:
        print_json(session)
        return
    rows = [
        ("id", session.id),
        ("state", _state(session.state)),
        ("agent", session.agent_id),
        ("model", session.agent.model),
        ("environment", session.environment.id),
        ("image", session.environment.image),
        ("created", time_of(session.create_time)),
        ("active", time_of(session.last_active_time)),
        ("usage", usage_line(session.usage)),
        ("error", session.error or session.environment.error),
        *((f"metadata.{key}", value) for key, value in sorted(session.metadata.items())),
    ]
    print_table(("FIELD", "VALUE"), [row for row in rows if row[1]])


@sessions.command()
@click.argument("session_id")
@click.option("--after", default=0, help="Begin after this event. [default: the first]")
@click.option("--follow", is_flag=True, help="Go on when the session has nothing to do.")
@as_json
def watch(session_id: str, after: int, follow: bool, as_json: bool) -> None:
    """Show what happened in SESSION_ID and what happens, until it has nothing to do."""
    show = print_json if as_json else Display(click.echo).show

    async def work() -> None:
        async with owner() as client:
            async for event in client.events(session_id, after=after, until_idle=not follow):
                show(event)

    asyncio.run(work())


@sessions.command()
@click.argument("session_id")
@click.argument("prompt")
@as_json
def send(session_id: str, prompt: str, as_json: bool) -> None:
    """Give SESSION_ID more input; prints the id of the turn that it begins."""
    request = pb.SubmitInputRequest(session_id=session_id)
    request.input.add(text=prompt)

    async def work() -> turns_pb2.Turn:
        async with owner() as client:
            with translate_errors():
                return (await client.sessions.SubmitInput(request)).turn

    turn = asyncio.run(work())
    if as_json:
        print_json(turn)
    else:
        click.echo(turn.id)


@sessions.command()
@click.argument("session_id")
@as_json
def cancel(session_id: str, as_json: bool) -> None:
    """Cancel what SESSION_ID does and is to do; prints the turns that were cancelled."""

    async def work() -> list[turns_pb2.Turn]:
        async with owner() as client:
            with translate_errors():
                request = pb.CancelTurnRequest(session_id=session_id)
                return list((await client.sessions.CancelTurn(request)).turns)

    for turn in asyncio.run(work()):
        if as_json:
            print_json(turn)
        else:
            click.echo(turn.id)


@sessions.command()
@click.argument("session_id")
def delete(session_id: str) -> None:
    """Delete SESSION_ID with its container, events and artifacts."""

    async def work() -> None:
        async with owner() as client:
            with translate_errors():
                request = pb.DeleteSessionRequest(session_id=session_id)
                await client.sessions.DeleteSession(request)

    asyncio.run(work())


def _state(state: "pb.Session.State.ValueType") -> str:
    return pb.Session.State.Name(state).removeprefix("STATE_").lower()
