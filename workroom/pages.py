"""Owns how services page: the size of a page, and the token that says where the next begins."""

import base64
import binascii

from workroom.errors import InvalidField

DEFAULT_SIZE = 20
LARGEST_SIZE = 100


def page_size(asked: int, default: int = DEFAULT_SIZE, largest: int = LARGEST_SIZE) -> int:
    """How many entries a page may have; 0 asks for the default. Raises `InvalidField`."""
    if asked < 0:
        raise InvalidField("page_size", f"{asked} is negative; 0 to {largest} are allowed")
    return min(asked or default, largest)


def token_of(scope: str, position: bytes) -> str:
    """The opaque token of a page that begins behind `position` of the list `scope`."""
    return base64.urlsafe_b64encode(scope.encode() + b":" + position).decode()


def position_of(scope: str, token: str) -> bytes | None:
    """What a page begins behind; None for the first page. Raises `InvalidField`."""
    if not token:
        return None
    try:
        name, colon, position = base64.urlsafe_b64decode(token.encode()).partition(b":")
    except (binascii.Error, ValueError):
        name, colon, position = b"", b"", b""
    if not colon or name != scope.encode():
        raise InvalidField("page_token", "is not a token that a page before this one gave")
    return position


def token_for(scope: str, number: int) -> str:
    """The token of a page that begins behind entry `number`."""
    return token_of(scope, str(number).encode())


def number_of(scope: str, token: str) -> int | None:
    """The entry that a page begins behind; None for the first page. Raises `InvalidField`."""
    position = position_of(scope, token)
    if position is None:
        return None
    number = int(position) if position.isdigit() and len(position) < 20 else 0
    if not 0 < number < 2**63:
        raise InvalidField("page_token", "is not a token that a page before this one gave")
    return number
