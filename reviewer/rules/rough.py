"""Owns a rough cut of a script into commands, for texts that the grammar misreads.

It knows quotes, comments, here-documents and the signs between commands, and nothing else. It
finds too much rather than too little, so it may only ever show danger.
"""

import re

from reviewer.rules.paths import UNKNOWN
from reviewer.rules.words import literal_fields

MAX_ROUGH_COMMANDS = 500
"""Most commands that are cut from one script."""

_MAX_HEREDOCS = 8

_TOKEN = re.compile(
    r"""(?P<heredoc><<-?\s*(?P<quote>['"\\]?)(?P<end>\w+)['"]?)
    |(?P<comment>(?:(?<=\s)|(?<=^))\#[^\n]*)
    |(?P<joint>&>>?|>[>&|]?|<[<>&(]*|&&?|\|[|&]?|;[;&]*|\n|[()`]|\$\(|!(?=\s)|[{}](?=\s|$))
    |(?P<blank>[ \t\r]+)
    |(?P<word>(?:\\.|'[^']*'|"(?:\\.|[^"\\])*"|\$\{[^}\n]{0,200}\}|[^\s;&|<>()`'"\\]|['"\\])+?
        (?=[\s;&|<>()`'"\\]|$))
    |(?P<rest>.)""",
    re.VERBOSE | re.DOTALL,
)
_QUOTED = re.compile(r"""'([^']*)'|"((?:\\.|[^"\\])*)"|(\\.)|([^'"\\]+)|(.)""", re.DOTALL)
_EXPANSION = re.compile(r"\$(?:\{[^}\n]{0,200}\}|\w+|[@*#?!$-])")
_KEYWORDS = frozenset({"if", "then", "else", "elif", "do", "while", "until", "time", "coproc"})


def rough_commands(script: str) -> list[tuple[str, ...]]:
    """Returns what may be the commands of a script. Never raises."""
    commands: list[tuple[str, ...]] = []
    words: list[str] = []
    glued = False
    skip_to = 0
    heredocs: list[str] = []
    for token in _TOKEN.finditer(script):
        if token.start() < skip_to:
            continue
        kind = token.lastgroup
        if kind == "heredoc" or token["heredoc"]:
            heredocs = [*heredocs, token["end"]][:_MAX_HEREDOCS]
        elif token["word"] or kind == "rest":
            if glued and words:
                words[-1] += token[0]
            else:
                words.append(token[0])
            glued = True
            continue
        elif token["joint"]:
            commands.append(_command(words))
            words = []
            if token[0] == "\n" and heredocs:
                skip_to = _after_heredocs(script, token.end(), heredocs)
                heredocs = []
        glued = False
        if len(commands) >= MAX_ROUGH_COMMANDS:
            break
    commands.append(_command(words))
    return [command for command in commands if command]


def _after_heredocs(script: str, start: int, ends: list[str]) -> int:
    for end in ends:
        closing = re.compile(rf"^\t*{re.escape(end)}$", re.MULTILINE).search(script, start)
        start = closing.end() if closing else len(script)
    return start


def _command(words: list[str]) -> tuple[str, ...]:
    start = next((i for i, word in enumerate(words) if word not in _KEYWORDS), len(words))
    return tuple(field for word in words[start : start + 2_000] for field in _fields(word))


def _fields(word: str) -> tuple[str, ...]:
    if not set(word) & set("'\"\\$"):
        return literal_fields(word)
    text = ""
    for single, double, escaped, plain, odd in _QUOTED.findall(word):
        text += single or _EXPANSION.sub(UNKNOWN, double or plain) or escaped[1:] or odd
    return (text,)
