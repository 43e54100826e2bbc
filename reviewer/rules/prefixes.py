"""Owns the operator's rules: their YAML form, its checks at load, and matching words.

The text is handed in; no file is read here. What follows from a match is decided elsewhere.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from reviewer.rules.dangers import Hazard
from reviewer.rules.found import Danger
from reviewer.rules.parse import Argv, parse_loose, parse_strict
from reviewer.rules.safe import program_name

MAX_RULES_BYTES = 256 * 1024
"""Longest text of rules that is read."""

_KINDS = frozenset({*Danger, *Hazard})
_FIELDS = frozenset({"id", "prefix", "finding", "decision", "justification", "match", "not_match"})


class Choice(StrEnum):
    """What a rule decides, from the mildest to the strictest."""

    ALLOW = "allow"
    REVIEW = "review"
    FORBID = "forbid"


class InvalidRules(ValueError):
    """The rules cannot be used; the message begins with the line at fault."""

    def __init__(self, line: int, problem: str) -> None:
        super().__init__(f"line {line}: {problem}")
        self.line = line
        self.problem = problem


@dataclass(frozen=True)
class Rule:
    """One rule: either words that a command must begin with, or a finding by its name.

    Each place of `prefix` holds the alternatives for one word. The first is a program: bare, it
    also matches that program by its absolute path in a standard folder, and nowhere else.
    """

    id: str
    choice: Choice
    justification: str
    prefix: tuple[frozenset[str], ...] = ()
    finding: str = ""

    def matches(self, argv: Sequence[str]) -> bool:
        if not self.prefix or len(argv) < len(self.prefix):
            return False
        first = argv[0]
        if first not in self.prefix[0] and (
            "/" not in first or program_name(first) not in self.prefix[0]
        ):
            return False
        rest = zip(self.prefix[1:], argv[1:], strict=False)
        return all(word in alternatives for alternatives, word in rest)


@dataclass(frozen=True)
class Rules:
    """All rules in their order. For one command the strictest that matches counts."""

    rules: tuple[Rule, ...] = ()

    def forbidding_or_reviewing(self, argv: Argv) -> Rule | None:
        """Returns the strictest rule against a command."""
        found = [r for r in self.rules if r.choice is not Choice.ALLOW and r.matches(argv)]
        return next((r for r in found if r.choice is Choice.FORBID), found[0] if found else None)

    def allowing(self, argv: Argv) -> Rule | None:
        """Returns the first rule that allows a command."""
        found = (r for r in self.rules if r.choice is Choice.ALLOW and r.matches(argv))
        return next(found, None)

    def forbidding(self, finding: str) -> Rule | None:
        """Returns the rule that forbids a finding."""
        named = (r for r in self.rules if r.finding == finding and r.choice is Choice.FORBID)
        return next(named, None)

    def joined(self, other: "Rules") -> "Rules":
        """Returns these rules followed by others."""
        return Rules(self.rules + other.rules)


def load_rules(text: str) -> Rules:
    """Reads rules from YAML and tries their examples.

    Raises InvalidRules, naming the line, for anything that is not understood: unknown and
    repeated keys, repeated ids, and examples that do not come out as they say.
    """
    if len(text.encode("utf-8", "replace")) > MAX_RULES_BYTES:
        raise InvalidRules(1, f"the rules are longer than {MAX_RULES_BYTES} bytes")
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        raise InvalidRules(mark.line + 1 if mark else 1, error.problem or "not YAML") from None
    except (yaml.YAMLError, RecursionError) as error:
        raise InvalidRules(1, f"not YAML: {type(error).__name__}") from None
    if root is None:
        return Rules()
    top = _mapping(root, frozenset({"rules"}))
    if "rules" not in top:
        raise _invalid(root, "the key rules is missing")
    rules: dict[str, Rule] = {}
    for node in _sequence(top["rules"], "rules"):
        rule = _rule(node)
        if rule.id in rules:
            raise _invalid(node, f"the id {rule.id!r} is used twice")
        rules[rule.id] = rule
    return Rules(tuple(rules.values()))


def _rule(node: Node) -> Rule:
    fields = _mapping(node, _FIELDS)
    for name in ("id", "decision", "justification"):
        if name not in fields:
            raise _invalid(node, f"the key {name} is missing")
    if ("prefix" in fields) == ("finding" in fields):
        raise _invalid(node, "exactly one of prefix and finding must be given")
    decision = _text(fields["decision"], "decision")
    if decision not in {*Choice}:
        raise _invalid(fields["decision"], f"decision must be one of {', '.join(Choice)}")
    rule = Rule(
        id=_text(fields["id"], "id"),
        choice=Choice(decision),
        justification=_text(fields["justification"], "justification"),
        prefix=_prefix(fields["prefix"]) if "prefix" in fields else (),
        finding=_finding(fields) if "finding" in fields else "",
    )
    _try_examples(rule, fields)
    return rule


def _finding(fields: Mapping[str, Node]) -> str:
    node = fields["finding"]
    finding = _text(node, "finding")
    if finding not in _KINDS:
        raise _invalid(node, f"finding must be one of {', '.join(sorted(_KINDS))}")
    if _text(fields["decision"], "decision") != Choice.FORBID:
        raise _invalid(node, "a finding is reviewed anyway; a rule can only forbid it")
    if "match" in fields or "not_match" in fields:
        raise _invalid(node, "a rule for a finding has no examples")
    return finding


def _prefix(node: Node) -> tuple[frozenset[str], ...]:
    places = _sequence(node, "prefix")
    if not places:
        raise _invalid(node, "prefix must have at least one word")
    return tuple(
        frozenset(_texts(place, "prefix"))
        if isinstance(place, SequenceNode)
        else frozenset({_text(place, "prefix")})
        for place in places
    )


def _try_examples(rule: Rule, fields: Mapping[str, Node]) -> None:
    for key, expected in (("match", True), ("not_match", False)):
        for node in _sequence(fields[key], key) if key in fields else []:
            example = _text(node, key)
            if _example_matches(rule, example) is not expected:
                verb = "does not match" if expected else "matches"
                raise _invalid(node, f"{verb} rule {rule.id!r}: {example}")


def _example_matches(rule: Rule, script: str) -> bool:
    if rule.choice is Choice.ALLOW:
        return any(rule.matches(argv) for argv in parse_strict(script) or ())
    return any(rule.matches(command.argv) for command in parse_loose(script).commands)


def _mapping(node: Node, allowed: frozenset[str]) -> dict[str, Node]:
    if not isinstance(node, MappingNode):
        raise _invalid(node, f"a mapping with {', '.join(sorted(allowed))} is expected")
    fields: dict[str, Node] = {}
    for key_node, value in node.value:
        key = _text(key_node, "a key")
        if key not in allowed:
            known = ", ".join(sorted(allowed))
            raise _invalid(key_node, f"{key!r} is not known; allowed: {known}")
        if key in fields:
            raise _invalid(key_node, f"{key!r} is given twice")
        fields[key] = value
    return fields


def _sequence(node: Node, name: str) -> list[Node]:
    if not isinstance(node, SequenceNode):
        raise _invalid(node, f"{name} must be a list")
    return list(node.value)


def _texts(node: SequenceNode, name: str) -> list[str]:
    if not node.value:
        raise _invalid(node, f"{name} has an empty list of alternatives")
    return [_text(child, name) for child in node.value]


def _text(node: Node, name: str) -> str:
    if not isinstance(node, ScalarNode) or not node.value:
        raise _invalid(node, f"{name} must be text that is not empty")
    return str(node.value)


def _invalid(node: Node, problem: str) -> InvalidRules:
    return InvalidRules(node.start_mark.line + 1, problem)
