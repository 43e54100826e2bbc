"""Owns what can be said of a node without running it: its first word, programs and output."""

from tree_sitter import Node

from reviewer.rules.syntax import text_of, walk
from reviewer.rules.words import ansi_text
from reviewer.rules.wrappers import is_wrapper, program

_MAX_LOOK = 2_000
_ECHO_OPTIONS = frozenset({"-n", "-e", "-ne", "-en", "-E"})


def first_word(node: Node) -> str:
    """Returns the name of a simple command's program as written; empty for anything else."""
    if node.type != "command":
        return ""
    name = node.child_by_field_name("name")
    return text_of(name).strip("'\"\\").rsplit("/", 1)[-1] if name is not None else ""


def programs(node: Node) -> frozenset[str]:
    """Returns the programs that may run somewhere in a node, and what wrappers may run."""
    if node.child_count == 1 and not node.children[0].children:
        return frozenset()
    names: set[str] = set()
    for found in walk(node, limit=_MAX_LOOK):
        if found.type != "command":
            continue
        first = first_word(found)
        names.add(first)
        if is_wrapper(first):
            words = [child for child in found.children[:20] if child.type == "word"]
            names.update(text_of(word).rsplit("/", 1)[-1] for word in words)
    return frozenset(names)


def output(argv: tuple[str, ...]) -> str | None:
    """Returns what `echo` and `printf` print; None for other programs."""
    name = program(argv)
    if name == "echo":
        return ansi_text(" ".join(word for word in argv[1:] if word not in _ECHO_OPTIONS))
    if name == "printf" and len(argv) > 1:
        text = ansi_text(argv[1])
        for word in argv[2:100]:
            text = text.replace("%s", word, 1) if "%s" in text else f"{text} {word}"
        return text
    return None


def starts_itself_twice(name: str, body: Node) -> bool:
    """Tells whether a function calls itself into a pipe or the background more than once."""
    calls = 0
    background = False
    for node in walk(body):
        if node.type == "pipeline":
            if sum(first_word(child) == name for child in node.named_children) > 1:
                return True
        elif node.type == "&":
            background = True
        calls += first_word(node) == name
    return calls > 1 and background
