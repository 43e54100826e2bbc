"""Owns the quotes in a script's texts: `{{ find: … }}` and `{{ each: … }}`, read and filled in.

A quote takes words out of what the script's own earlier calls returned, by regular expression.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

import yaml

from orchestrator.models.patterns import Match, Pattern, PatternInvalid

Scope = Literal["last", "all", "session", "prompt"] | int
"""Where a quote looks: an int is the step of that number, counted from 1."""

_QUOTE = re.compile(
    r"""\{\{((?:"(?:\\.|[^"\\])*"|'(?:''|[^'])*'|[^"'}]|\}(?!\}))*)\}\}""", re.DOTALL
)
_PLACEHOLDER = re.compile(r"\{(\w+)\}")
_KEYS = {
    "find": {"in", "group", "nth", "as"},
    "each": {"in", "format", "join", "skip", "limit", "least"},
    "literal": set[str](),
}
_EXCERPT = 200


T = TypeVar("T", str, int)


class QuoteProblem(ValueError):
    """A quote that cannot be read, or that matches nothing; the text says which and why."""


@dataclass(frozen=True, slots=True)
class Find:
    """One match: the `nth` (from 0, negative from the end), and of it one group."""

    pattern: Pattern
    scope: Scope
    group: int | str
    nth: int
    form: Literal["text", "number", "json"]


@dataclass(frozen=True, slots=True)
class Each:
    """Every match, formatted and joined. `{1}` or `{name}` is a group, `{n}` counts from 1."""

    pattern: Pattern
    scope: Scope
    format: str
    join: str
    skip: int
    limit: int | None
    least: int


Quote = Find | Each


@dataclass(frozen=True, slots=True)
class Template:
    """A text with quotes in it."""

    parts: tuple[str | Quote, ...]

    @property
    def only(self) -> Quote | None:
        """The quote, where there is nothing else."""
        if len(self.parts) == 1 and not isinstance(self.parts[0], str):
            return self.parts[0]
        return None

    @property
    def quotes(self) -> Iterator[Quote]:
        return (part for part in self.parts if not isinstance(part, str))


@dataclass(frozen=True, slots=True)
class Sources:
    """What quotes can look into: outputs by step of this turn, all in the context, the prompt."""

    steps: Mapping[int, Sequence[str]]
    last: int
    session: Sequence[str]
    prompt: str

    def within(self, scope: Scope) -> Sequence[str]:
        match scope:
            case "last":
                return self.steps.get(self.last, ())
            case "all":
                return [text for step in sorted(self.steps) for text in self.steps[step]]
            case "session":
                return self.session
            case "prompt":
                return (self.prompt,)
            case number:
                return self.steps.get(number, ())


def parse(text: str) -> Template:
    """Read a text. Errors: `QuoteProblem`."""
    parts: list[str | Quote] = []
    at = 0
    for match in _QUOTE.finditer(text):
        parts += [_plain(text[at : match.start()]), _parse_quote(match[1])]
        at = match.end()
    parts.append(_plain(text[at:]))
    return Template(tuple(part for part in parts if part != ""))


def _plain(text: str) -> str:
    if "{{" in text:
        raise QuoteProblem(
            "'{{' without its '}}'; for the braces themselves write {{ literal: '{{' }}"
        )
    return text


def render(template: Template, sources: Sources) -> str:
    """Fill in the quotes. Errors: `QuoteProblem`."""
    return "".join(
        part if isinstance(part, str) else _quoted(part, sources) for part in template.parts
    )


def render_value(template: Template, sources: Sources) -> object:
    """As `render`, but a quote alone may ask to become a number or JSON."""
    text = render(template, sources)
    quote = template.only
    if not isinstance(quote, Find) or quote.form == "text":
        return text
    try:
        value = json.loads(text)
    except ValueError as error:
        raise QuoteProblem(f"{_name(quote)} is no {quote.form}: {text[:_EXCERPT]!r}") from error
    if quote.form == "number" and (isinstance(value, bool) or not isinstance(value, int | float)):
        raise QuoteProblem(f"{_name(quote)} is no number: {text[:_EXCERPT]!r}")
    return value


def _quoted(quote: Quote, sources: Sources) -> str:
    texts = sources.within(quote.scope)
    matches: list[Match] = []
    for haystack in _views(texts):
        matches = list(quote.pattern.finditer(haystack))
        if isinstance(quote, Each):
            matches = matches[quote.skip :][: quote.limit]
            if len(matches) >= quote.least:
                return quote.join.join(_row(quote, m, n) for n, m in enumerate(matches, 1))
        elif -len(matches) <= quote.nth < len(matches):
            return matches[quote.nth][quote.group] or ""
    looked = "\n".join(texts)
    wanted = f"at least {quote.least}" if isinstance(quote, Each) else f"number {quote.nth}"
    raise QuoteProblem(
        f"{_name(quote)} matches {len(matches)} times, {wanted} is wanted, "
        f"in {len(looked)} characters that begin with {looked[:_EXCERPT]!r}"
    )


def _row(quote: Each, match: Match, number: int) -> str:
    def value(placeholder: re.Match[str]) -> str:
        key = placeholder[1]
        if key == "n" and "n" not in quote.pattern.groupindex:
            return str(number)
        return match[int(key) if key.isdecimal() else key] or ""

    return _PLACEHOLDER.sub(value, quote.format)


def _views(texts: Sequence[str]) -> Iterator[str]:
    """The texts as they are; where they are JSON, then the strings in it without escapes."""
    yield "\n".join(texts)
    unescaped = [_strings(text) for text in texts]
    if any(view is not None for view in unescaped):
        yield "\n".join(
            text if view is None else view for text, view in zip(texts, unescaped, strict=True)
        )


def _strings(text: str) -> str | None:
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return "\n".join(_leaves(value))


def _leaves(value: object) -> Iterator[str]:
    if isinstance(value, Mapping):
        for entry in value.values():
            yield from _leaves(entry)
    elif isinstance(value, list):
        for entry in value:
            yield from _leaves(entry)
    else:
        yield value if isinstance(value, str) else json.dumps(value)


def _name(quote: Quote) -> str:
    scope = quote.scope if isinstance(quote.scope, str) else f"step {quote.scope}"
    verb = "find" if isinstance(quote, Find) else "each"
    return f"{verb} {quote.pattern.pattern!r} in {scope}"


def _parse_quote(inner: str) -> Quote | str:
    try:
        fields = yaml.safe_load("{" + inner + "}")
    except yaml.YAMLError as error:
        problem = getattr(error, "problem", None) or str(error)
        raise QuoteProblem(
            f"cannot read {{{{{inner}}}}}: {problem} (in double quotes a backslash is written "
            "twice, in single quotes once)"
        ) from error
    verb = next((verb for verb in _KEYS if verb in fields), None)
    if verb is None:
        raise QuoteProblem(f"{{{{{inner}}}}} has none of {', '.join(_KEYS)}")
    if unknown := [str(key) for key in fields if key != verb and key not in _KEYS[verb]]:
        allowed = ", ".join(sorted(_KEYS[verb])) or "nothing"
        raise QuoteProblem(f"{verb} knows no {', '.join(unknown)} (allowed: {allowed})")
    if verb == "literal":
        return _field(fields, "literal", str, "")
    pattern = compile_pattern(_field(fields, verb, str, ""))
    scope = _scope(fields.get("in", "last"))
    if verb == "each":
        return _each(fields, pattern, scope)
    group = fields.get("group", 1 if pattern.groups else 0)
    _check_group(pattern, group)
    form = fields.get("as", "text")
    if form not in ("text", "number", "json"):
        raise QuoteProblem(f"as: {form!r} is none of text, number, json")
    return Find(pattern, scope, group, _field(fields, "nth", int, 0), form)


def compile_pattern(pattern: str) -> Pattern:
    """As `Pattern`. Errors: `QuoteProblem`."""
    try:
        return Pattern(pattern)
    except PatternInvalid as error:
        raise QuoteProblem(str(error)) from error


def _each(fields: Mapping[str, object], pattern: Pattern, scope: Scope) -> Each:
    form = _field(fields, "format", str, "{1}" if pattern.groups else "{0}")
    for placeholder in _PLACEHOLDER.findall(form):
        if placeholder != "n":
            _check_group(pattern, int(placeholder) if placeholder.isdecimal() else placeholder)
    limit, least = _field(fields, "limit", int, 0), _field(fields, "least", int, 1)
    if limit < 0 or least < 0 or 0 < limit < least:
        raise QuoteProblem(f"limit: {limit} and least: {least} cannot both be kept")
    return Each(
        pattern,
        scope,
        form,
        _field(fields, "join", str, "\n"),
        max(_field(fields, "skip", int, 0), 0),
        limit or None,
        least,
    )


def _field(fields: Mapping[str, object], key: str, kind: type[T], default: T) -> T:
    value = fields.get(key, default)
    if not isinstance(value, kind) or isinstance(value, bool):
        raise QuoteProblem(
            f"{key}: {value!r} must be {'text' if kind is str else 'a whole number'}"
        )
    return value


def _check_group(pattern: Pattern, group: object) -> None:
    known = (
        group in pattern.groupindex
        if isinstance(group, str)
        else (isinstance(group, int) and 0 <= group <= pattern.groups)
    )
    if not known:
        raise QuoteProblem(f"{pattern.pattern!r} has no group {group!r}")


def _scope(value: object) -> Scope:
    match value:
        case "last" | "all" | "session" | "prompt":
            return value
        case str() if found := re.fullmatch(r"step ([1-9]\d*)", value):
            return int(found[1])
    raise QuoteProblem(f"in: {value!r} is none of last, all, session, prompt, step N")
