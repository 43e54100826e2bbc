"""The commands and their options. Says what went wrong in one place, with the exit code."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import click

from workroom import __version__
from workroom.cli import keys as key_commands
from workroom.cli.agents import agents
from workroom.cli.display import printable
from workroom.cli.installation import Installation, NotUp
from workroom.cli.run import PROTOCOLS, Options
from workroom.cli.run import run as run_prompt
from workroom.cli.services import SERVICES, serving
from workroom.cli.sessions import sessions
from workroom.cli.supervision import Supervision
from workroom.cli.traffic import traffic
from workroom.errors import WorkroomError
from workroom.paths import Home
from workroom.rpc.logs import configure_logs

T = TypeVar("T")

INTERRUPTED = 130  # 128 + SIGINT, as shells have it
NOT_HEALTHY = 3


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="workroom")
def cli() -> None:
    """Gives an AI agent a computer."""


@cli.command()
@click.argument("prompt")
@click.option(
    "--file",
    "files",
    multiple=True,
    type=click.Path(path_type=Path),
    help="Put a file into /workspace of the container. Repeatable.",
)
@click.option(
    "--allow",
    "allowed",
    multiple=True,
    metavar="HOST",
    help="Let the container reach HOST (`x`, `*.x`, `**.x`, with a port or not). Repeatable.",
)
@click.option("--image", default="", help="The container's image. [default: base]")
@click.option("--model", default="", help="The model's name. [default: ORCHESTRATOR_MODEL]")
@click.option(
    "--base-url",
    default="",
    metavar="URL",
    help="A model server, up to and with the version. Its key: ORCHESTRATOR_MODEL_API_KEY.",
)
@click.option(
    "--protocol",
    type=click.Choice(list(PROTOCOLS)),
    default="responses",
    show_default=True,
    help="What the server of --base-url speaks.",
)
@click.option(
    "--script",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Play a script instead of calling a model.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path(),
    metavar="DIR",
    help="Where artifacts are fetched to. [default: .]",
)
@click.option("--json", "as_json", is_flag=True, help="Print events and the result as JSON lines.")
@click.option("--keep", is_flag=True, help="Keep the session and its container afterwards.")
def run(**options: Any) -> None:
    """Give the agent PROMPT and a container, and show what it does and answers.

    Uses the installation that is up, or starts one for as long as this takes.
    """
    _check_text(options)
    if not options["prompt"].strip():
        raise click.UsageError("PROMPT is empty")
    if options["script"] is not None and (options["base_url"] or options["model"]):
        raise click.UsageError(
            "--script plays a script: it goes with neither --model nor --base-url"
        )
    _run(run_prompt(Options(**options)))


def _check_text(options: dict[str, Any]) -> None:
    """Refuses words with bytes that are not UTF-8: they could not be sent."""
    for name in ("prompt", "image", "model", "base_url"):
        if not options[name].isascii():
            try:
                options[name].encode()
            except UnicodeEncodeError:
                raise click.UsageError(f"{name.upper()} is not UTF-8") from None


@cli.command()
@click.option("--detach", is_flag=True, help="Return when the services answer; they stay up.")
@click.option("--until-unused", is_flag=True, hidden=True)
@click.option("--no-setup", is_flag=True, help="Do not look after the engine and the image.")
def up(detach: bool, until_unused: bool, no_setup: bool) -> None:
    """Start the four services, and keep them running until Ctrl-C or `workroom down`."""
    _run(_up(detach=detach, until_unused=until_unused, no_setup=no_setup))


async def _up(*, detach: bool, until_unused: bool, no_setup: bool) -> None:
    home = Home.from_env().create()
    installation = Installation(home)
    if not no_setup:
        await installation.set_up()
    if detach:
        if installation.owner() is None:
            await installation.ready(installation.spawn([], os.environ))
        click.echo(f"up, process {_owner_pid(installation)}, data in {home.root}")
        return
    configure_logs()
    await Supervision(home, os.environ).run(installation, until_unused=until_unused)


def _owner_pid(installation: Installation) -> int:
    owner = installation.owner()
    if owner is None:
        raise NotUp("the services stopped as soon as they had started")
    return owner.pid


@cli.command()
def down() -> None:
    """Stop the services. Containers and data stay for the next `workroom up`."""
    pid = _run(Installation(Home.from_env().create()).down())
    click.echo(f"stopped process {pid}")


@cli.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def status(as_json: bool) -> None:
    """Show which services answer. Exits with 3 unless all do."""
    home = Home.from_env().create()
    health = _run(_health(home))
    owner = Installation(home).owner()
    if as_json:
        pid = owner.pid if owner else None
        click.echo(json.dumps({"process": pid, "home": str(home.root), "services": health}))
    else:
        click.echo(f"data      {home.root}")
        click.echo(f"process   {owner.pid if owner else 'not up'}")
        for service in SERVICES:
            state = "serving" if health[service.name] else "not serving"
            click.echo(f"{service.name:<13} {state:<12} {service.address(home)}")
    if not all(health.values()):
        sys.exit(NOT_HEALTHY)


async def _health(home: Home) -> dict[str, bool]:
    answers = await asyncio.gather(*(serving(service, home) for service in SERVICES))
    return {service.name: answer for service, answer in zip(SERVICES, answers, strict=True)}


cli.add_command(agents)
cli.add_command(sessions)
cli.add_command(key_commands.keys)
cli.add_command(traffic)


def _run(work: Coroutine[Any, Any, T]) -> T:
    """Runs `work`; TERM and HUP end it as Ctrl-C does."""

    async def cancellable() -> T:
        task = asyncio.current_task()
        assert task is not None
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, task.cancel)
        return await work

    return asyncio.run(cancellable())


def main() -> None:
    """The program: every known failure is one message and an exit code, never a traceback."""
    try:
        sys.exit(cli.main(standalone_mode=False))
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt, asyncio.CancelledError):
        click.echo("interrupted", err=True)
        sys.exit(INTERRUPTED)
    except (WorkroomError, OSError) as error:
        _fail(error)
    except ExceptionGroup as group:
        known = group.subgroup((WorkroomError, OSError))
        if known is None:
            raise
        _fail(next(_leaves(known)))


def _fail(error: BaseException) -> NoReturn:
    if isinstance(error, BrokenPipeError):  # whoever read our output wants no more of it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    click.echo(f"{click.style('error:', fg='red')} {printable(str(error))}", err=True)
    sys.exit(1)


def _leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error
