"""Owns paging: how large a page is, and what the opaque token for the next one says."""

import base64
import binascii
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from sqlalchemy import Row

from workroom.errors import InvalidField

T = TypeVar("T")

DEFAULT_SIZE = 20
LARGEST_SIZE = 100
PAGE_CHARS = 768 * 1024
"""Characters of JSON in one page, unless its first entry alone has more: a page fits a message."""


@dataclass(frozen=True, slots=True)
class PageRequest:
    """A wish for a page: at most `size` entries, 0 for the default, after the one before."""

    size: int = 0
    token: str = ""

    def limit(self) -> int:
        """How many entries the page may have. Errors: `InvalidField`."""
        if self.size < 0:
            raise InvalidField("page_size", "must not be negative")
        return min(self.size, LARGEST_SIZE) or DEFAULT_SIZE

    def after(self, scope: str) -> int | None:
        """The last ordinal of the page before; None for the first. Errors: `InvalidField`."""
        if not self.token:
            return None
        try:
            name, _, ordinal = base64.urlsafe_b64decode(self.token).decode().rpartition(":")
            number = int(ordinal)
        except (binascii.Error, ValueError):
            name, number = "", 0
        if name != scope or not 0 < number < 2**63:
            raise InvalidField("page_token", "is not a token that a page before this one gave")
        return number


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """Some entries; an empty `next_token` says that nothing follows."""

    entries: tuple[T, ...]
    next_token: str = ""


def page_of(
    rows: Sequence[Row[Any]], limit: int, scope: str, read: Callable[[Row[Any]], T]
) -> Page[T]:
    """A page made of up to `limit + 1` rows; the one too many only says that there is more."""
    shown = rows[: _fitting(rows, limit)]
    token = ""
    if len(rows) > len(shown):
        token = base64.urlsafe_b64encode(f"{scope}:{shown[-1].ordinal}".encode()).decode()
    return Page(tuple(read(row) for row in shown), token)


def _fitting(rows: Sequence[Row[Any]], limit: int) -> int:
    chars = 0
    for number, row in enumerate(rows[:limit]):
        chars += sum(len(value) for value in row if isinstance(value, str))
        if chars > PAGE_CHARS and number:
            return number
    return limit
