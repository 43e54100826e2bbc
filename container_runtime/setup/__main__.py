"""Runs set-up from a shell: `python -m container_runtime.setup [engine|image NAME|all|...]`."""

import argparse
import asyncio
import signal
import sys
from collections.abc import Coroutine

from container_runtime.setup.answering import Answer, ask, engine_socket
from container_runtime.setup.engine import ensure_engine, stop_engine
from container_runtime.setup.images import ensure_image, remove_images
from workroom.errors import WorkroomError


def main() -> int:
    """Does what the arguments say; 1 with the reason on stderr when it cannot be done.

    SIGINT, SIGTERM and SIGHUP (which tells that a parent died) end it in order: no process,
    container or half image is left behind.
    """
    arguments = _parser().parse_args()
    try:
        return asyncio.run(_until_signalled(_run(arguments)))
    except WorkroomError as error:
        _tell(error.message)
        return 1


async def _until_signalled(work: Coroutine[None, None, int]) -> int:
    received: list[signal.Signals] = []
    task = asyncio.current_task()
    assert task is not None

    def stop(number: signal.Signals) -> None:
        if number != signal.SIGHUP or not received:  # a parent's death may be told several times
            received.append(number)
            task.cancel()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, stop, number)
    try:
        return await work
    except asyncio.CancelledError:
        if not received:
            raise
        _tell("stopped before it was done; running it again goes on")
        return 128 + received[0]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m container_runtime.setup",
        description="Makes this machine ready to run containers. Doing it again costs nothing.",
    )
    parser.set_defaults(command="all")
    commands = parser.add_subparsers(dest="command", required=False)
    commands.add_parser("all", help="an engine and the image `base` (the default)")
    commands.add_parser("engine", help="an engine that answers, started if none does")
    image = commands.add_parser("image", help="an engine and this image")
    image.add_argument("name", help="base or full")
    commands.add_parser("status", help="exit with 0 if an engine answers, else with 1")
    stop = commands.add_parser("stop-engine", help="stop the engine, if Workroom started it")
    stop.add_argument("--force", action="store_true", help="even while containers run on it")
    commands.add_parser("remove-images", help="remove the images that set-up has made")
    return parser


async def _run(arguments: argparse.Namespace) -> int:
    if arguments.command == "status":
        return 0 if await ask(engine_socket()) is Answer.YES else 1
    if arguments.command == "stop-engine":
        stopped = await stop_engine(_tell, force=arguments.force)
        _tell("engine stopped" if stopped else "no engine of ours runs")
        return 0
    if arguments.command == "remove-images" and await ask(engine_socket()) is not Answer.YES:
        _tell("no engine answers, so there are no images to remove")
        return 0
    engine = await ensure_engine(_tell)
    if arguments.command == "remove-images":
        await remove_images(engine, _tell)
    elif arguments.command != "engine":
        name = arguments.name if arguments.command == "image" else "base"
        image = await ensure_image(name, engine, _tell)
        _tell(f"engine {engine.version} at {engine.socket}, image {image.reference}")
    else:
        _tell(f"engine {engine.version} at {engine.socket}")
    return 0


def _tell(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
