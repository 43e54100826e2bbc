"""Owns page sizes and page tokens: opaque to clients, ours to read."""

import base64
import binascii

from container_runtime.limits import PAGE, PAGE_MAX
from workroom.errors import InvalidField


def page_size(asked: int, default: int = PAGE, most: int = PAGE_MAX) -> int:
    """How many a page holds. Raises `InvalidField`."""
    if asked < 0:
        raise InvalidField("page_size", f"{asked} is negative; 0 to {most} are allowed")
    return min(asked or default, most)


def token_of(position: bytes) -> str:
    """The token of the page behind `position`."""
    return base64.urlsafe_b64encode(b"1" + position).decode()


def position_of(token: str) -> bytes:
    """The position behind which the page begins; empty for the first. Raises `InvalidField`."""
    if not token:
        return b""
    try:
        position = base64.urlsafe_b64decode(token.encode())
    except (binascii.Error, ValueError):
        position = b""
    if not position.startswith(b"1"):
        raise InvalidField("page_token", "it is not a token of an earlier page")
    return position[1:]
