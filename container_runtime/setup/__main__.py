"""Runs set-up from a shell: `python -m container_runtime.setup [engine|image NAME|all|...]`."""

import argparse
import asyncio
import sys

from container_runtime.setup import ensure_engine, ensure_image, remove_images, stop_engine
from container_runtime.setup.answering import Answer, ask, engine_socket
from workroom.errors import WorkroomError


def main() -> int:
    """Does what the arguments say; 1 with the reason on stderr when it cannot be done."""
    arguments = _parser().parse_args()
    try:
        asyncio.run(_run(arguments))
    except WorkroomError as error:
        _tell(error.message)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


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
    stop = commands.add_parser("stop-engine", help="stop the engine, if Workroom started it")
    stop.add_argument("--force", action="store_true", help="even while containers run on it")
    commands.add_parser("remove-images", help="remove the images that set-up has made")
    return parser


async def _run(arguments: argparse.Namespace) -> None:
    if arguments.command == "stop-engine":
        stopped = await stop_engine(_tell, force=arguments.force)
        _tell("engine stopped" if stopped else "no engine of ours runs")
        return
    if arguments.command == "remove-images" and await ask(engine_socket()) is not Answer.YES:
        _tell("no engine answers, so there are no images to remove")
        return
    engine = await ensure_engine(_tell)
    if arguments.command == "remove-images":
        await remove_images(engine, _tell)
    elif arguments.command != "engine":
        name = arguments.name if arguments.command == "image" else "base"
        image = await ensure_image(name, engine, _tell)
        _tell(f"engine {engine.version} at {engine.socket}, image {image.reference}")
    else:
        _tell(f"engine {engine.version} at {engine.socket}")


def _tell(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
