"""Owns how ids look: a prefix that says the kind, then 128 bits."""

import uuid

_SPACE = uuid.UUID("6c5f2a0e-54c8-4b57-9a63-0b8f1f6ad6f1")


def new(prefix: str) -> str:
    """A fresh id, such as `sess_…`."""
    return f"{prefix}_{uuid.uuid4().hex}"


def derived(prefix: str, *parts: str | int) -> str:
    """The id that these parts always give, so that a repeated step names the same things."""
    return f"{prefix}_{uuid.uuid5(_SPACE, '/'.join(map(str, parts))).hex}"
