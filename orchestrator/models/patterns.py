"""Owns the regular expressions that scripts bring: searching takes time in step with the text.

Python's own engine can be kept busy for ever by a pattern and a text that a caller chose, so
these are RE2's: https://github.com/google/re2/wiki/Syntax, without look-around and back-references.
"""

from collections.abc import Iterator, Mapping
from typing import Protocol

import re2

_LINES = "(?m)"


class PatternInvalid(ValueError):
    """The pattern cannot be used; the text says why."""


class Match(Protocol):
    """Where a pattern matches: its groups by number or name, None where one took no part."""

    def __getitem__(self, group: int | str) -> str | None: ...


class Pattern:
    """A pattern whose ^ and $ mean lines. Raises `PatternInvalid`."""

    def __init__(self, pattern: str) -> None:
        if not pattern:
            raise PatternInvalid("the pattern is empty")
        options = re2.Options()
        options.log_errors = False
        self.pattern = pattern
        try:
            self._compiled = re2.compile(_LINES + pattern, options)
        except UnicodeError as error:
            raise PatternInvalid(f"{pattern!r} is no text") from error
        except re2.error as error:
            words = error.args[0].decode(errors="replace").replace(_LINES, "", 1)
            raise PatternInvalid(f"{pattern!r} is no regular expression here: {words}") from error

    @property
    def groups(self) -> int:
        """How many groups it has."""
        return int(self._compiled.groups)

    @property
    def groupindex(self) -> Mapping[str, int]:
        """The numbers of the groups that have a name."""
        index: Mapping[str, int] = self._compiled.groupindex
        return index

    def search(self, text: str) -> Match | None:
        """The first match."""
        return next(self.finditer(text), None)

    def finditer(self, text: str) -> Iterator[Match]:
        """Every match, from left to right."""
        whole = text.encode(errors="replace").decode()  # a surrogate alone has no UTF-8
        matches: Iterator[Match] = self._compiled.finditer(whole)
        return matches
