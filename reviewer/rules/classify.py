"""Owns the verdict on an action: what the rules and the text of the action say together.

Pure: no model is asked, nothing is read or run. What follows from a verdict is not decided here.
"""

from dataclasses import dataclass
from enum import StrEnum

from reviewer.rules.dangers import Hazard, Hazardous, hazards
from reviewer.rules.found import Command, Danger, Finding, Loose
from reviewer.rules.packages import installs_packages
from reviewer.rules.parse import Argv, parse_loose, parse_loose_argv, parse_strict
from reviewer.rules.paths import DEFAULT_CWD, DEFAULT_ROOTS, Places
from reviewer.rules.prefixes import Choice, Rule, Rules
from reviewer.rules.safe import STANDARD_FOLDERS, is_safe
from reviewer.rules.syntax import parse_tree
from reviewer.rules.wrappers import SHELLS

_SHELL_PATHS = frozenset(SHELLS) | {f"{folder}/{s}" for folder in STANDARD_FOLDERS for s in SHELLS}


class Outcome(StrEnum):
    """How an action stands, from the mildest to the strictest."""

    SAFE = "safe"
    UNKNOWN = "unknown"
    DANGEROUS = "dangerous"
    FORBIDDEN = "forbidden"


class Kind(StrEnum):
    """What sort of thing is asked for, where its treatment differs."""

    COMMAND = "command"
    PACKAGE_INSTALLATION = "package_installation"
    ASK_HOST = "ask_host"
    MCP_TOOL = "mcp_tool"


class Need(StrEnum):
    """A permission without which a dangerous action does not run unreviewed."""

    ROOT = "root"
    DANGEROUS = "dangerous"


@dataclass(frozen=True)
class Action:
    """A command that is asked for: an argument list or a script, exactly one of them."""

    argv: tuple[str, ...] | None = None
    script: str | None = None
    cwd: str = DEFAULT_CWD
    as_root: bool = False

    def __post_init__(self) -> None:
        if (self.argv is None) == (self.script is None):
            raise ValueError("exactly one of argv and script must be given")


@dataclass(frozen=True)
class Verdict:
    """What the rules found, and the rule and command that decided."""

    outcome: Outcome
    reason: str
    rule_id: str = ""
    command: str = ""
    kind: Kind = Kind.COMMAND
    needs: frozenset[Need] = frozenset()


def classify(
    action: Action, rules: Rules, *, writable_roots: tuple[str, ...] = DEFAULT_ROOTS
) -> Verdict:
    """Judges one action. Never raises, whatever its text.

    Only a strict reading proves an action safe: every command of it is on the list of those that
    only read, or allowed by a rule. Only the loose reading finds danger. What is both, or
    neither, is treated as the stricter.
    """
    strict, loose = _readings(action)
    places = Places(writable_roots or DEFAULT_ROOTS)
    dangers = _dangers(loose, rules, places)
    forbidden = next((d for d in dangers if d.outcome is Outcome.FORBIDDEN), None)
    if forbidden is not None:
        return forbidden
    if action.as_root:
        reason = "it asks to run as root"
        dangers.insert(0, Verdict(Outcome.DANGEROUS, reason, "root", needs=frozenset({Need.ROOT})))
    if dangers:
        first = dangers[0]
        needs = frozenset(need for danger in dangers for need in danger.needs)
        reasons = dict.fromkeys(danger.reason for danger in dangers)
        reason = "; ".join(list(reasons)[:3])
        return Verdict(first.outcome, reason, first.rule_id, first.command, needs=needs)
    return _proven(strict, rules) or _unproven(loose)


def _readings(action: Action) -> tuple[tuple[Argv, ...] | None, Loose]:
    if action.script is not None:
        syntax = parse_tree(action.script)
        return parse_strict(syntax), parse_loose(syntax, cwd=action.cwd)
    argv = action.argv or ()
    loose = parse_loose_argv(argv, cwd=action.cwd)
    if any("\0" in word for word in argv):
        return None, Loose(loose.commands, (Finding(Danger.HIDDEN_CODE, "a NUL byte"),))
    shell = len(argv) == 3 and argv[0] in _SHELL_PATHS and argv[1] in ("-c", "-lc")
    if shell:
        return parse_strict(argv[2]), loose
    return ((argv,) if argv else None), loose


def _dangers(loose: Loose, rules: Rules, places: Places) -> list[Verdict]:
    found = [_of_finding(finding, rules) for finding in loose.findings]
    for command in loose.commands:
        rule = rules.forbidding_or_reviewing(command.argv) if command.argv else None
        if rule is not None:
            found.append(_of_rule(rule, command))
        found += [_of_hazard(hazard, command, rules) for hazard in hazards(command, places)]
    return found


_SAID = {
    Danger.FORK_BOMB: "it is a fork bomb",
    Danger.FETCHED_CODE: "it runs code straight from the network",
    Danger.HIDDEN_CODE: "it runs code that cannot be seen",
    Danger.TOO_DEEP: "it cannot be looked into",
    Danger.TOO_LARGE: "it cannot be looked into",
}


def _of_finding(finding: Finding, rules: Rules) -> Verdict:
    reason = f"{_SAID[finding.danger]}: {finding.text}"
    return _found(finding.danger, reason, finding.text, Need.DANGEROUS, rules)


def _of_hazard(hazard: Hazardous, command: Command, rules: Rules) -> Verdict:
    need = Need.ROOT if hazard.hazard is Hazard.ROOT else Need.DANGEROUS
    return _found(hazard.hazard, hazard.reason, command.text, need, rules)


def _found(name: str, reason: str, command: str, need: Need, rules: Rules) -> Verdict:
    rule = rules.forbidding(name)
    if rule is not None:
        said = f"{reason}; {rule.justification}"
        return Verdict(Outcome.FORBIDDEN, said, rule.id, command)
    return Verdict(Outcome.DANGEROUS, reason, name, command, needs=frozenset({need}))


def _of_rule(rule: Rule, command: Command) -> Verdict:
    if rule.choice is Choice.FORBID:
        return Verdict(Outcome.FORBIDDEN, rule.justification, rule.id, command.text)
    needs = frozenset({Need.DANGEROUS})
    return Verdict(Outcome.DANGEROUS, rule.justification, rule.id, command.text, needs=needs)


def _proven(strict: tuple[Argv, ...] | None, rules: Rules) -> Verdict | None:
    if not strict:
        return None
    rule_id = "read-only"
    for argv in strict:
        rule = rules.allowing(argv)
        if rule is not None:
            rule_id = rule.id
        elif not is_safe(argv):
            return None
    return Verdict(Outcome.SAFE, "every command in it is allowed or only reads", rule_id)


def _unproven(loose: Loose) -> Verdict:
    for command in loose.commands:
        if command.argv and installs_packages(command.argv):
            reason = "it installs packages, whose code comes from elsewhere"
            return Verdict(
                Outcome.UNKNOWN, reason, "package-installation", command.text,
                kind=Kind.PACKAGE_INSTALLATION,
            )  # fmt: skip
    return Verdict(Outcome.UNKNOWN, "neither proven safe nor known to be dangerous")
