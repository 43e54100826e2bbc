"""Owns what a shell word can turn into, as far as the script itself says; runs nothing."""

import re
from collections.abc import Callable, Sequence
from itertools import product

from tree_sitter import Node

from reviewer.rules.paths import ELSEWHERE, HOME, UNKNOWN
from reviewer.rules.syntax import text_of

MAX_CHOICES = 16
"""Most values that are kept for one variable or word; with more it counts as unknown."""

MAX_TEXT = 128 * 1024
"""Longest value that is kept, in characters; a longer one counts as unknown."""

Fields = tuple[str, ...]
"""The words that one word of the text turns into: none, one or several."""

# Characters that are active in the text stand as private marks until fields are made, so that
# quoted ones are left alone. The marks themselves cannot come from the text: `_clean`.
_OPEN, _COMMA, _CLOSE, _SPACE, _TILDE = "\x02", "\x03", "\x04", "\x05", "\x06"
_ACTIVE = str.maketrans({"{": _OPEN, ",": _COMMA, "}": _CLOSE})
_PASSIVE = str.maketrans({_OPEN: "{", _COMMA: ",", _CLOSE: "}", _TILDE: "~"})
_MARKS = re.compile(r"[\x00-\x06]")
_SPLIT = re.compile(r"[ \t\n]+")
_BRACES = re.compile(f"{_OPEN}([^{_OPEN}{_CLOSE}]*){_CLOSE}")
_PLAIN = re.compile(r"[A-Za-z0-9_./:=@%+*-]+", re.ASCII)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*|[0-9@*#?!$-]")
_ANSI = re.compile(
    r"\\(x[0-9a-fA-F]{1,2}|u[0-9a-fA-F]{1,4}|U[0-9a-fA-F]{1,8}|[0-7]{1,3}|c.|.)", re.DOTALL
)
_ANSI_NAMES = {"a": "\a", "b": "\b", "e": "\x1b", "E": "\x1b", "f": "\f", "n": "\n", "r": "\r"}
_ANSI_NAMES |= {"t": "\t", "v": "\v"}


class Variables:
    """What the script's variables may hold, whatever the order in which it runs.

    Only what the script sets is known, besides HOME, PWD and TMPDIR; once the script sets one of
    these too, either value may be meant.
    """

    def __init__(self, cwd: str) -> None:
        self._values: dict[str, set[str]] = {"HOME": {HOME}, "PWD": {cwd}, "TMPDIR": {"/tmp"}}

    def get(self, name: str) -> Sequence[str]:
        values = self._values.get(name)
        return sorted(values) if values and len(values) <= MAX_CHOICES else (UNKNOWN,)

    def add(self, name: str, values: Sequence[str]) -> None:
        known = self._values.setdefault(name, set())
        if len(known) <= MAX_CHOICES:
            known.update(v if len(v) <= MAX_TEXT else UNKNOWN for v in values)

    def known(self, name: str) -> bool:
        return name in self._values


class Words:
    """Turns nodes of the tree into the text that they may stand for.

    `substituted` says what a command substitution prints, where that is plain from its text.
    """

    def __init__(self, variables: Variables, substituted: Callable[[Node], str]) -> None:
        self._variables = variables
        self._substituted = substituted

    def fields(self, node: Node) -> list[Fields]:
        """Returns the alternatives that a word may turn into, `MAX_CHOICES` at most."""
        kind = node.type
        if kind == "command_name" and node.child_count == 1:
            node = node.children[0]
            kind = node.type
        if kind in ("word", "number", "string", "raw_string"):
            text = text_of(node)
            if kind.endswith("string") and len(text) > 2:
                text = text[1:-1]
            if _PLAIN.fullmatch(text):
                return [(text,)]
        return [self._split(choice) for choice in self._choices(node, quoted=False, depth=0)]

    def values(self, node: Node) -> list[str]:
        """Returns what a word may hold where it is not split, as in an assignment."""
        return [self._plain(choice) for choice in self._choices(node, quoted=True, depth=0)]

    def _split(self, marked: str) -> Fields:
        fields: list[str] = []
        for piece in _expand_braces(marked):
            fields += [self._plain(field) for field in piece.split(_SPACE) if field or not piece]
        return tuple(fields)

    def _plain(self, marked: str) -> str:
        if marked.startswith(_TILDE):
            name, slash, rest = marked[1:].partition("/")
            home = self._variables.get("HOME")
            # `~name` is another's folder; of several homes the first stands for all.
            base = UNKNOWN if name or not home else home[0]
            marked = base + slash + rest
        return marked.translate(_PASSIVE).replace(_SPACE, " ")

    def _choices(self, node: Node, *, quoted: bool, depth: int) -> list[str]:
        if depth > 20:
            return [UNKNOWN]
        kind = node.type
        if kind in ("word", "number", "variable_name", "special_variable_name", "extglob_pattern"):
            return [_word(text_of(node))]
        if kind == "raw_string":
            return [_clean(text_of(node)[1:-1])]
        if kind == "ansi_c_string":
            return [_clean(ansi_text(text_of(node)[2:-1]))]
        if kind in ("string_content", "heredoc_content"):
            return [_clean(re.sub(r'\\([$`"\\])|\\\n', r"\1", text_of(node)))]
        if kind in ("string", "translated_string", "concatenation", "command_name", "heredoc_body"):
            inside = quoted or kind in ("string", "translated_string", "heredoc_body")
            return self._joined(node, quoted=inside, depth=depth + 1)
        if kind in ("simple_expansion", "expansion"):
            return [_unquoted(v, quoted) for v in self._expansion(node, depth)]
        if kind == "command_substitution":
            return [_unquoted(self._substituted(node), quoted)]
        return [UNKNOWN] if node.is_named else [_clean(text_of(node))]

    def _joined(self, node: Node, *, quoted: bool, depth: int) -> list[str]:
        """Puts the pieces of a node together, with the text between them."""
        source, start = node.text or b"", node.start_byte
        pieces: list[list[str]] = []
        end = start
        children = node.children
        if node.type in ("string", "translated_string") and children:
            children = [c for c in children if c.type not in ('"', "$")]
            end = start + source.find(b'"') + 1
        for child in children:
            gap = source[end - start : child.start_byte - start]
            if gap:
                pieces.append([_clean(gap.decode("utf-8", "replace"))])
            pieces.append(self._choices(child, quoted=quoted, depth=depth))
            end = child.end_byte
        if not node.children:
            return [_clean(text_of(node))]
        combinations = 1
        for piece in pieces:
            combinations *= len(piece)
        if combinations > MAX_CHOICES:
            pieces = [piece if len(piece) == 1 else [UNKNOWN] for piece in pieces]
        joined = ["".join(choice) for choice in product(*pieces)]
        return [text if len(text) <= MAX_TEXT else UNKNOWN for text in joined]

    def _expansion(self, node: Node, depth: int) -> Sequence[str]:
        names = [c for c in node.children if c.type.endswith("variable_name")]
        if not names:
            return (UNKNOWN,)
        name = text_of(names[0])
        values = self._variables.get(name) if _NAME.fullmatch(name) else (UNKNOWN,)
        rest = [c for c in node.children if c.start_byte >= names[0].end_byte and c.type != "}"]
        if not rest:
            return values
        if rest[0].type in (":-", "-", ":=", "=") and len(rest) > 1:
            fallback = self._choices(rest[1], quoted=True, depth=depth + 1)
            if self._variables.known(name):
                return [*values, *fallback] if UNKNOWN in values else values
            return [UNKNOWN, *fallback]
        return values if rest[0].type in (":?", "?") else (UNKNOWN,)


def literal_fields(text: str) -> Fields:
    """Returns what an unquoted word without expansions turns into."""
    fields = tuple(piece.translate(_PASSIVE) for piece in _expand_braces(_word(text)))
    return tuple(HOME + f[1:] if f == "~" or f.startswith("~/") else f for f in fields)


def _clean(text: str) -> str:
    return _MARKS.sub("\x1a", text)


def _unquoted(value: str, quoted: bool) -> str:
    value = value.replace(ELSEWHERE, UNKNOWN)
    return value if quoted else _SPLIT.sub(_SPACE, value)


def _word(text: str) -> str:
    """Marks what is active in unquoted text and takes the escapes out."""
    text = _clean(text)
    if "\\" not in text:
        marked = text.translate(_ACTIVE)
        return _TILDE + marked[1:] if marked.startswith("~") else marked
    parts = re.split(r"(\\\n|\\.)", text, flags=re.DOTALL)
    plain = [
        part.translate(_ACTIVE) if not part.startswith("\\") else part[1:].replace("\n", "")
        for part in parts
    ]
    marked = "".join(plain)
    return _TILDE + marked[1:] if text.startswith("~") else marked


def _expand_braces(marked: str) -> list[str]:
    """Expands `{a,b}`; with too many results they are left as they are."""
    done: list[str] = []
    pending = [marked]
    while pending:
        text = pending.pop()
        found = _BRACES.search(text)
        if not found or len(done) + len(pending) > MAX_CHOICES * 4:
            done.append(text)
            continue
        inner = found[1].split(_COMMA)
        if len(inner) == 1:  # `{}` and `{x}` mean themselves
            inner = ["{" + inner[0] + "}"]
        before, after = text[: found.start()], text[found.end() :]
        pending += [before + part + after for part in reversed(inner)]
    return done


def ansi_text(text: str) -> str:
    """Takes out the escapes of `$'...'` and `echo -e`."""

    def decoded(match: re.Match[str]) -> str:
        code = match[1]
        if code[0] in "xuU" and len(code) > 1:
            value = int(code[1:], 16)
            return chr(value) if 0 < value < 0xD800 else "\x1a"
        if code[0] in "01234567":
            return chr(int(code, 8) & 0xFF)
        return "\x1a" if code[0] == "c" else _ANSI_NAMES.get(code, code)

    return _ANSI.sub(decoded, text)
