"""Owns the forms in which the loose reading reports: commands, findings, and their text."""

from dataclasses import dataclass
from enum import StrEnum

from reviewer.rules.paths import UNKNOWN
from reviewer.rules.wrappers import program

MAX_SHOWN = 300
"""Longest text of a command that is quoted in a reason, in characters."""


class Danger(StrEnum):
    """What the structure of a script alone can show; rules may name them."""

    FORK_BOMB = "fork_bomb"
    FETCHED_CODE = "fetched_code"
    HIDDEN_CODE = "hidden_code"
    TOO_DEEP = "too_deep"
    TOO_LARGE = "too_large"


@dataclass(frozen=True)
class Finding:
    """A danger, and the text that shows it."""

    danger: Danger
    text: str


@dataclass(frozen=True)
class Command:
    """A simple command that may run. `UNKNOWN` stands in it for what cannot be known."""

    argv: tuple[str, ...]
    cwds: tuple[str, ...]
    """The folders that it may run in."""
    writes: tuple[str, ...] = ()
    """The files that its redirects write."""

    @property
    def name(self) -> str:
        return program(self.argv)

    @property
    def text(self) -> str:
        return shown(" ".join(self.argv))


@dataclass(frozen=True)
class Loose:
    """All that was found."""

    commands: tuple[Command, ...]
    findings: tuple[Finding, ...]


def shown(text: str) -> str:
    """Returns text fit to be quoted: bounded, on one line, with `…` for what is not known."""
    clean = "".join(c if c.isprintable() else " " for c in text[:2_000].replace(UNKNOWN, "…"))
    return clean if len(clean) <= MAX_SHOWN else clean[: MAX_SHOWN - 1] + "…"
