"""Owns the bounded parse of a script into a syntax tree; knows nothing of what commands mean."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import tree_sitter
import tree_sitter_bash
from tree_sitter import Node

MAX_SCRIPT_BYTES = 128 * 1024
"""Longest script that is looked into: what the kernel takes as one argument."""

MAX_NODES = 100_000
"""Most nodes that a tree may have."""

PARSE_SECONDS = 0.25
"""Longest time that one parse may take; some hostile texts cost the parser quadratic time."""

_LANGUAGE = tree_sitter.Language(tree_sitter_bash.language())
_CHUNK_BYTES = 4096
# The parser can be stopped only where it asks for its text piece by piece, which costs time; a
# text this short ends soon whatever it is.
_SHORT_BYTES = 1024


@dataclass(frozen=True)
class Syntax:
    """A script and its tree. Without a tree, `problem` says why it cannot be looked into."""

    text: bytes
    root: Node | None
    problem: str = ""


def parse_tree(script: str, *, clock: Callable[[], float] = time.monotonic) -> Syntax:
    """Parses a script within bounds. Never raises, whatever the text."""
    text = _encoded(script)
    if len(text) > MAX_SCRIPT_BYTES:
        return Syntax(b"", None, f"the script is longer than {MAX_SCRIPT_BYTES} bytes")
    if b"\0" in text:
        return Syntax(b"", None, "the script contains a NUL byte")
    deadline = clock() + PARSE_SECONDS
    parser = tree_sitter.Parser(_LANGUAGE)
    try:
        if len(text) <= _SHORT_BYTES:
            tree = parser.parse(text)
        else:
            tree = parser.parse(
                lambda offset, _: text[offset : offset + _CHUNK_BYTES],
                progress_callback=lambda offset, failed: clock() > deadline,
            )
    except ValueError:
        return Syntax(text, None, "the script is too intricate to be looked into")
    if tree.root_node.descendant_count > MAX_NODES:
        return Syntax(text, None, f"the script has more than {MAX_NODES} parts")
    return Syntax(text, tree.root_node)


def walk(node: Node, *, limit: int = MAX_NODES) -> Iterator[Node]:
    """Yields a node and everything below it in the order of the text, without recursion."""
    pending = [node]
    while pending and limit > 0:
        limit -= 1
        current = pending.pop()
        yield current
        pending.extend(reversed(current.children))


def text_of(node: Node) -> str:
    """Returns a node's text; bytes that are not UTF-8 are replaced."""
    return (node.text or b"").decode("utf-8", "replace")


def _encoded(script: str) -> bytes:
    """Returns the bytes that would reach the shell; what cannot be sent is replaced."""
    try:
        return script.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return script.encode("utf-8", "replace")
