"""Owns what is learnt of a script's variables before it is read: what they may ever hold."""

import re

from tree_sitter import Node

from reviewer.rules.paths import UNKNOWN
from reviewer.rules.printed import first_word
from reviewer.rules.syntax import text_of, walk
from reviewer.rules.words import MAX_CHOICES, Variables, Words

_SETTERS = frozenset({"read", "mapfile", "readarray", "getopts", "unset"})
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_MAX_LEARNT = 1_000
_SIGNS = re.compile(rb"=|\bfor\b|\bselect\b|read|getopts|unset|mapfile|printf")


def learn(text: bytes, root: Node, variables: Variables, words: Words) -> None:
    """Adds every value that the script may give to a variable, in whatever order it runs."""
    if not _SIGNS.search(text):
        return
    left = _MAX_LEARNT
    for node in walk(root):
        if node.type == "variable_assignment":
            _assignment(node, variables, words)
            left -= 1
        elif node.type == "for_statement":
            _loop(node, variables, words)
            left -= 1
        elif node.type == "command":
            _setter(node, variables)
        if not left:
            return


def _assignment(node: Node, variables: Variables, words: Words) -> None:
    name, value = node.child_by_field_name("name"), node.child_by_field_name("value")
    if name is None:
        return
    appends = any(child.type == "+=" for child in node.children)
    values = [""] if value is None else [UNKNOWN] if appends else words.values(value)
    variables.add(text_of(name), values)


def _loop(loop: Node, variables: Variables, words: Words) -> None:
    name = loop.child_by_field_name("variable")
    if name is None:
        return
    values = loop.children_by_field_name("value")
    for value in values[:MAX_CHOICES]:
        for choice in words.fields(value):
            variables.add(text_of(name), choice)
    if not values or len(values) > MAX_CHOICES:
        variables.add(text_of(name), [UNKNOWN])


def _setter(command: Node, variables: Variables) -> None:
    first = first_word(command)
    if first not in _SETTERS and first != "printf":
        return
    words = [text_of(child) for child in command.children[1:20]]
    if first == "printf" and "-v" not in words:
        return
    for word in words:
        if _VARIABLE.fullmatch(word):
            variables.add(word, [UNKNOWN])
