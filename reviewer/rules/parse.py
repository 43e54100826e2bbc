"""Owns the two ways to read a script: strict, which may prove it safe, and loose, which may not.

Neither runs, expands files or reads anything: both see the text alone.

Strict reading accepts plain commands joined by `&&`, `||`, `;`, `|` and newlines, made of words,
numbers and quoted strings without expansions. Everything else is *not proven*: redirects,
assignments, substitutions, globs, braces, tildes, escapes, comments, control flow, background.

Loose reading collects every literal command anywhere (see `collect`). Its limits: the code of
other interpreters (`python -c`, `awk`, `make`) is not looked into, nor is a file that the script
writes and then runs; a variable is known only where the script itself sets it; what the grammar
misreads is missed. So it is a hint for the reviewer and never the boundary: the container is.
"""

import re
import time
from collections.abc import Callable

from tree_sitter import Node

from reviewer.rules.collect import Collector
from reviewer.rules.found import Loose
from reviewer.rules.paths import DEFAULT_CWD
from reviewer.rules.syntax import Syntax, parse_tree, text_of

Argv = tuple[str, ...]

_SEQUENCES = frozenset({"program", "list", "pipeline"})
_JOINTS = frozenset({"&&", "||", ";", "|", "\n"})
_BLANK = re.compile(rb"[ \t\n]*")
_PLAIN_WORD = re.compile(r"[A-Za-z0-9_./:,@%+=-]+", re.ASCII)
_CONTROL = re.compile(rb"[\x00-\x08\x0b-\x1f\x7f]")
_MAX_STRICT_COMMANDS = 100


def parse_strict(script: str | Syntax) -> tuple[Argv, ...] | None:
    """Returns the script's simple commands, or None when it is not made of such alone."""
    syntax = parse_tree(script) if isinstance(script, str) else script
    root = syntax.root
    if root is None or root.has_error or _CONTROL.search(syntax.text):
        return None
    commands: list[Argv] = []
    pending = [root]
    end = 0
    while pending:
        node = pending.pop()
        if node.type == "command":
            argv = _simple(node)
            if argv is None or len(commands) == _MAX_STRICT_COMMANDS:
                return None
            commands.append(argv)
        elif node.type in _SEQUENCES and node.is_named:
            pending.extend(reversed(node.children))
            continue
        elif node.is_named or node.type not in _JOINTS:
            return None
        if not _BLANK.fullmatch(syntax.text, end, node.start_byte):
            return None
        end = node.end_byte
    if not _BLANK.fullmatch(syntax.text, end):
        return None
    return tuple(commands) or None


def parse_loose(
    script: str | Syntax,
    *,
    cwd: str = DEFAULT_CWD,
    clock: Callable[[], float] = time.monotonic,
) -> Loose:
    """Returns every literal command found in the script, however deep. Never raises."""
    collector = Collector(cwd, clock=clock)
    collector.add_script(script)
    return collector.result()


def parse_loose_argv(
    argv: Argv, *, cwd: str = DEFAULT_CWD, clock: Callable[[], float] = time.monotonic
) -> Loose:
    """Like `parse_loose`, for a program that is started without a shell."""
    collector = Collector(cwd, clock=clock)
    collector.add_argv(argv)
    return collector.result()


def _simple(command: Node) -> Argv | None:
    """Returns a command's words when each is literal and nothing else is in it."""
    words: list[str] = []
    end = command.start_byte
    source = command.text or b""
    for child in command.children:
        node = child.children[0] if child.type == "command_name" and child.children else child
        word = _literal(node)
        gap = source[end - command.start_byte : child.start_byte - command.start_byte]
        if word is None or gap.strip(b" \t") or (words and not gap):
            return None
        words.append(word)
        end = child.end_byte
    if not words or "=" in words[0]:
        return None
    return tuple(words)


def _literal(node: Node) -> str | None:
    """Returns what the shell makes of a word, when that is plain from the text."""
    text = text_of(node)
    match node.type:
        case "word" | "number":
            return text if _PLAIN_WORD.fullmatch(text) and not text.startswith("=") else None
        case "raw_string":
            return text[1:-1]
        case "string":
            if any(child.type not in ('"', "string_content") for child in node.children):
                return None
            inner = text[1:-1]
            return inner if not set(inner) & set('$`\\!"') else None
        case "concatenation":
            parts = [_literal(child) for child in node.children]
            known = [part for part in parts if part is not None]
            joined = "".join(known)
            plain = len(known) == len(parts) and len(joined) == _length(node)
            return joined if plain and not joined.startswith("=") else None
    return None


def _length(concatenation: Node) -> int:
    """Returns how long the pieces are without their quotes, gaps between them included."""
    quotes = sum(2 for c in concatenation.children if c.type in ("string", "raw_string"))
    return len(text_of(concatenation)) - quotes
