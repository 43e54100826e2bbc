"""Owns how services page: the size of a page, and the token that says where the next begins."""

import base64
import binascii

from workroom.errors import InvalidField

DEFAULT_SIZE = 20
LARGEST_SIZE = 100


def page_size(asked: int) -> int:
    """How many entries a page may have; 0 asks for the default. Raises InvalidField."""
    if asked < 0:
        raise InvalidField("page_size", "must not be negative")
    return min(asked, LARGEST_SIZE) or DEFAULT_SIZE


def token_for(scope: str, number: int) -> str:
    """The opaque token of a page that begins behind entry `number` of the list `scope`."""
    return base64.urlsafe_b64encode(f"{scope}:{number}".encode()).decode()


def number_of(scope: str, token: str) -> int | None:
    """The entry that a page begins behind; None for the first page. Raises InvalidField."""
    if not token:
        return None
    try:
        name, _, digits = base64.urlsafe_b64decode(token).decode().rpartition(":")
        number = int(digits)
    except (binascii.Error, ValueError):
        name, number = "", 0
    if name != scope or not 0 < number < 2**63:
        raise InvalidField("page_token", "is not a token that a page before this one gave")
    return number
