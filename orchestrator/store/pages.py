"""Owns pages of what is stored: which rows one has, so that it fits a message."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from sqlalchemy import Row

from workroom.pages import number_of, page_size, token_for

T = TypeVar("T")

PAGE_CHARS = 768 * 1024
"""Characters of JSON in one page, unless its first entry alone has more: a page fits a message."""


@dataclass(frozen=True, slots=True)
class PageRequest:
    """A wish for a page: at most `size` entries, 0 for the default, after the one before."""

    size: int = 0
    token: str = ""

    def limit(self) -> int:
        """How many entries the page may have. Errors: `InvalidField`."""
        return page_size(self.size)

    def after(self, scope: str) -> int | None:
        """The last ordinal of the page before; None for the first. Errors: `InvalidField`."""
        return number_of(scope, self.token)


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
        token = token_for(scope, shown[-1].ordinal)
    return Page(tuple(read(row) for row in shown), token)


def _fitting(rows: Sequence[Row[Any]], limit: int) -> int:
    chars = 0
    for number, row in enumerate(rows[:limit]):
        chars += sum(len(value) for value in row if isinstance(value, str))
        if chars > PAGE_CHARS and number:
            return number
    return limit
