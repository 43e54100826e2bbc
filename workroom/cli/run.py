"""`workroom run`: one prompt, one answer. Puts a session together, shows it, fetches its files."""

import json
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import click
import grpc
from google.protobuf.json_format import MessageToDict

from workroom.cli.artifacts import fetch
from workroom.cli.display import Display, printable, text_of, usage_line
from workroom.cli.installation import Installation
from workroom.cli.services import ORCHESTRATOR
from workroom.cli.uses import Use, using
from workroom.client import Client
from workroom.errors import InvalidField, WorkroomError
from workroom.orchestrator.v1 import (
    agents_pb2,
    environments_pb2,
    events_pb2,
    sessions_pb2,
    turns_pb2,
)
from workroom.paths import Home
from workroom.rpc.channel import translate_errors

TOUR = "tour.yaml"
MODEL_NOT_CONFIGURED = "MODEL_NOT_CONFIGURED"
PROTOCOLS = {
    "responses": agents_pb2.ModelEndpoint.PROTOCOL_RESPONSES,
    "chat": agents_pb2.ModelEndpoint.PROTOCOL_CHAT,
}


class TurnNotCompleted(WorkroomError):
    """The turn failed or was cancelled; the message says why."""

    code = grpc.StatusCode.FAILED_PRECONDITION
    reason = "TURN_NOT_COMPLETED"


@dataclass(frozen=True)
class Options:
    """What the command line asked for."""

    prompt: str
    files: Sequence[Path]
    allowed: Sequence[str]
    image: str
    model: str
    base_url: str
    protocol: str
    script: Path | None
    out: Path
    as_json: bool
    keep: bool


async def run(options: Options) -> None:
    """Runs one prompt to its answer. Raises `TurnNotCompleted` when there is none."""
    agent = _agent(options)
    _check_files(options.files)
    _check_out(options.out)
    home = Home.from_env().create()
    installation = Installation(home)
    with installation.used():
        if installation.owner() is None:
            await installation.set_up()
        await installation.ensure_up(os.environ)
        async with Client.connect(ORCHESTRATOR.address(home)) as client:
            with using(home) as use:
                await _converse(client, options, agent, use)
    await installation.left()


def _check_files(paths: Sequence[Path]) -> None:
    """Refuses what cannot be put into the container, before anything is started for it."""
    names: dict[str, Path] = {}
    for path in paths:
        shown = printable(str(path))
        if any(not character.isprintable() for character in path.name):
            raise InvalidField(
                "--file", f"{str(path)!r} has a character in its name that is no text; rename it"
            )
        if not path.exists():
            raise InvalidField("--file", f"{shown} does not exist")
        if path.is_dir():
            raise InvalidField(
                "--file", f"{shown} is a directory; name the files in it, or pack it"
            )
        if not os.access(path, os.R_OK):
            raise InvalidField("--file", f"{shown} cannot be read by this user")
        if path.name in names:
            raise InvalidField("--file", f"{names[path.name]} and {path} have the same name")
        names[path.name] = path


def _check_out(out: Path) -> None:
    """Refuses a folder that artifacts could not be fetched into, while nothing is lost by it."""
    there = out.absolute()
    while not there.exists():
        there = there.parent
    try:
        with tempfile.TemporaryFile(dir=there):
            pass
    except OSError as error:
        raise InvalidField(
            "--out",
            f"{printable(str(out))}: files cannot be written to {printable(str(there))} "
            f"({error.strerror}); name a folder where they can",
        ) from error


def _agent(options: Options) -> agents_pb2.Agent:
    """The agent, with whoever the command line says serves its model."""
    model = options.model
    if options.base_url and not model:
        model = os.environ.get("ORCHESTRATOR_MODEL", "")
        if not model:
            raise InvalidField("--base-url", "needs --model: the name of a model that it serves")
    agent = agents_pb2.Agent(model=model)
    if options.script is not None:
        try:
            yaml = options.script.read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidField("--script", f"{options.script} cannot be read: {error}") from error
        agent.provider.script.name = options.script.name
        agent.provider.script.yaml = yaml
    elif options.base_url:
        agent.provider.endpoint.protocol = PROTOCOLS[options.protocol]
        agent.provider.endpoint.base_url = options.base_url
        agent.provider.endpoint.api_key = os.environ.get("ORCHESTRATOR_MODEL_API_KEY", "")
    return agent


async def _converse(client: Client, options: Options, agent: agents_pb2.Agent, use: Use) -> None:
    uploaded = []
    session_id = ""
    try:
        environment = environments_pb2.EnvironmentSpec(image=options.image)
        if options.allowed:
            environment.network.access = environments_pb2.NetworkPolicy.ACCESS_RESTRICTED
            environment.network.allowed_domains.extend(options.allowed)
        for path in options.files:
            file = await client.upload(path)
            uploaded.append(file.id)
            if not options.keep:
                use.note_file(file.id)
            environment.files.add(file_id=file.id, path=f"/workspace/{path.name}")
        request = sessions_pb2.CreateSessionRequest(
            request_id=os.urandom(16).hex(),
            agent=agent,
            environment=environment,
            input=[turns_pb2.ContentPart(text=options.prompt)],
            metadata={} if options.keep else use.metadata,
        )
        session = await _create(client, request, options)
        session_id = session.id
        await _follow(client, session_id, options)
    finally:
        if not options.keep:
            await _remove(client, options, session_id, uploaded)
        # Without an id the session may be in the making: then `up` looks for it a little later.
        if session_id or options.keep:
            use.cleared()


async def _remove(client: Client, options: Options, session_id: str, files: Sequence[str]) -> None:
    """Takes away what was made; what cannot be now, `up` takes away when this command has ended."""
    try:
        await client.remove(session_id, files)
    except WorkroomError as error:
        _tell(options, f"the session is removed later: {error}")


async def _create(
    client: Client, request: sessions_pb2.CreateSessionRequest, options: Options
) -> sessions_pb2.Session:
    """Creates the session; where no model is configured, with the tour played instead of one."""
    with translate_errors():
        try:
            response = await client.sessions.CreateSession(request)
        except grpc.aio.AioRpcError as error:
            if not _says(error, MODEL_NOT_CONFIGURED):
                raise
            if options.model:
                raise InvalidField(
                    "--model",
                    f"no model server is configured that could have {options.model!r}; name it "
                    "with --base-url or ORCHESTRATOR_MODEL_BASE_URL",
                ) from error
            request.agent.provider.script.name = TOUR
            request.agent.provider.script.yaml = (
                resources.files("workroom.cli").joinpath(TOUR).read_text()
            )
            response = await client.sessions.CreateSession(request)
    if request.agent.provider.HasField("script"):
        _tell(options, f"no model: playing the script {request.agent.provider.script.name}")
    return response.session


def _says(error: grpc.aio.AioRpcError, reason: str) -> bool:
    try:
        with translate_errors():
            raise error
    except WorkroomError as translated:
        return translated.reason == reason


def _tell(options: Options, text: str) -> None:
    """A note for the person at the terminal, kept out of a program's JSON."""
    click.echo(click.style(f"· {text}", dim=True), err=options.as_json)


async def _follow(client: Client, session_id: str, options: Options) -> None:
    """Shows the session until it is idle, then what came of it."""
    show: Callable[[events_pb2.Event], None]
    show = _print_json if options.as_json else Display(click.echo).show
    turn = turns_pb2.Turn()
    answer = ""
    failure = ""
    async for event in client.events(session_id, until_idle=True):
        show(event)
        payload = event.WhichOneof("payload")
        if payload in ("turn_completed", "turn_failed", "turn_cancelled"):
            turn = getattr(event, payload).turn
        elif payload == "session_failed":
            failure = event.session_failed.error
        elif payload == "item_done" and _is_answer(event.item_done.item):
            answer = text_of(event.item_done.item.message)
    completed = turn.state == turns_pb2.Turn.STATE_COMPLETED
    fetched = await fetch(client, session_id, options.out) if completed else []
    if options.as_json:
        _print_result(session_id, turn, answer, fetched)
    else:
        for path in fetched:
            click.echo(f"artifact {path}")
        _tell(options, usage_line(turn.usage))
    if not completed:
        why = failure or turn.error.message or "the turn was cancelled"
        code = f" ({turn.error.code})" if turn.error.code else ""
        raise TurnNotCompleted(f"no answer: {why}{code}", session_id=session_id)


def _is_answer(item: turns_pb2.Item) -> bool:
    return item.message.phase == turns_pb2.Message.PHASE_FINAL_ANSWER


def _print_json(event: events_pb2.Event) -> None:
    click.echo(json.dumps(MessageToDict(event), ensure_ascii=False))


def _print_result(
    session_id: str, turn: turns_pb2.Turn, answer: str, fetched: Sequence[Path]
) -> None:
    """The last line of the JSON output."""
    result = {
        "sessionId": session_id,
        "turn": MessageToDict(turn),
        "answer": answer,
        "artifacts": [str(path) for path in fetched],
    }
    click.echo(json.dumps({"result": result}, ensure_ascii=False))
    sys.stdout.flush()
