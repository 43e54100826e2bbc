"""Owns the reading of redirects: what they write, what text they feed, what else they carry."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from tree_sitter import Node

from reviewer.rules.syntax import text_of
from reviewer.rules.words import Words

_WORDS = frozenset({"word", "string", "raw_string", "concatenation", "number"})


@dataclass(frozen=True)
class Redirects:
    """What the redirects of one command amount to."""

    writes: list[str] = field(default_factory=list)
    """Files that are written."""
    texts: list[str] = field(default_factory=list)
    """Texts that arrive on standard input."""
    words: list[Node] = field(default_factory=list)
    """Words that the grammar took for targets: they belong to the command."""
    followers: list[Node] = field(default_factory=list)
    """What stands behind the mark of a here-document, as in `cat <<EOF | sh`."""
    inner: list[Node] = field(default_factory=list)
    """Nodes in which substitutions may be."""


def read_redirects(nodes: Iterable[Node], words: Words) -> Redirects:
    """Reads those of the nodes that are redirects."""
    redirects = Redirects()
    for node in nodes:
        if node.type == "heredoc_redirect":
            _heredoc(node, redirects, words)
        elif node.type.endswith("_redirect"):
            _simple(node, redirects, words)
    return redirects


def heredoc_texts(heredoc: Node, words: Words) -> list[str]:
    """Returns what a here-document may say."""
    start = next((c for c in heredoc.children if c.type == "heredoc_start"), None)
    quoted = start is not None and set(text_of(start)) & set("'\"\\")
    texts: list[str] = []
    for child in heredoc.children:
        if child.type == "heredoc_body":
            texts += [text_of(child)] if quoted else words.values(child)
    return texts


def _heredoc(node: Node, redirects: Redirects, words: Words) -> None:
    redirects.texts.extend(heredoc_texts(node, words))
    for child in node.children:
        if child.type == "heredoc_body":
            redirects.inner.append(child)
        elif child.type in ("file_redirect", "herestring_redirect"):
            _simple(child, redirects, words)
        elif child.is_named and child.type not in ("heredoc_start", "heredoc_end"):
            (redirects.words if child.type in _WORDS else redirects.followers).append(child)


def _simple(node: Node, redirects: Redirects, words: Words) -> None:
    redirects.inner.extend(child for child in node.children if child.children)
    if node.type == "herestring_redirect":
        for child in node.children:
            if child.is_named and child.type != "file_descriptor":
                redirects.texts.extend(words.values(child))
        return
    targets = node.children_by_field_name("destination")
    redirects.words.extend(targets[1:])
    if targets and any(_writes(child) for child in node.children):
        for choice in words.fields(targets[0]):
            redirects.writes.extend(choice)


def _writes(part: Node) -> bool:
    sign = text_of(part) if part.type == "ERROR" else "" if part.is_named else part.type
    return ">" in sign
