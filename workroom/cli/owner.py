"""Owns the way to the orchestrator of the installation, as its owner, and how lists are printed."""

import json
import shutil
import sys
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import click
import grpc
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message

from workroom.cli.display import printable
from workroom.cli.installation import NotUp
from workroom.cli.services import ORCHESTRATOR
from workroom.client import Client
from workroom.errors import InvalidField, WorkroomError
from workroom.paths import Home

if TYPE_CHECKING:
    from google.protobuf.timestamp_pb2 import Timestamp


@asynccontextmanager
async def owner() -> AsyncIterator[Client]:
    """The owner's client. Raises `NotUp` where nobody answers."""
    address = ORCHESTRATOR.address(Home.from_env())
    try:
        async with Client.connect(address) as client:
            yield client
    except WorkroomError as error:
        if error.code is not grpc.StatusCode.UNAVAILABLE:
            raise
        raise NotUp(f"no orchestrator answers at {address}: start it with `workroom up`") from error


def print_json(message: Message) -> None:
    """A message as one line of JSON."""
    click.echo(json.dumps(MessageToDict(message), ensure_ascii=False))


def print_table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Rows under titles, each column as wide as it has to be; a terminal's edge ends the last."""
    cells = [titles, *([" ".join(printable(cell).split()) for cell in row] for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(titles))]
    most = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    for number, row in enumerate(cells):
        padded = (f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True))
        line = "  ".join(padded).rstrip()[:most]
        click.echo(click.style(line, bold=True) if number == 0 else line)


def time_of(timestamp: "Timestamp") -> str:
    """A moment, to the second, in UTC."""
    return timestamp.ToDatetime().isoformat(timespec="seconds") + "Z"


def pairs(words: Sequence[str], option: str) -> dict[str, str]:
    """`KEY=VALUE` words as a map. Errors: `InvalidField`."""
    found = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals:
            raise InvalidField(option, f"{word!r} is not KEY=VALUE")
        found[key] = value
    return found
