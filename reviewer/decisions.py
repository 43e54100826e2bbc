"""Owns what follows from a verdict under a review mode; judges nothing itself."""

from dataclasses import dataclass
from enum import StrEnum

from reviewer.rules.classify import Kind, Need, Outcome, Verdict
from reviewer.rules.paths import DEFAULT_ROOTS
from workroom.errors import NotSupported


class Mode(StrEnum):
    """How actions that need approval are treated; the names are the public API's."""

    NONE = "none"
    AUTO_REVIEW = "auto_review"


@dataclass(frozen=True)
class Permissions:
    """What an environment allows without asking anybody."""

    root: bool = False
    dangerous: bool = False
    writable_roots: tuple[str, ...] = DEFAULT_ROOTS


class Follows(StrEnum):
    """What becomes of the action. Under no mode is it left pending."""

    RUN = "run"
    FAIL = "fail"


@dataclass(frozen=True)
class Decision:
    """What becomes of an action, and why, in words fit for the agent and its user."""

    outcome: Follows
    reason: str


def decide(mode: Mode, verdict: Verdict, permissions: Permissions) -> Decision:
    """Decides what becomes of an action.

    | verdict | `none` |
    | --- | --- |
    | safe, unknown, package installation | runs |
    | dangerous, root, write outside the roots | runs if the permissions allow it, else fails |
    | tool whose rule asks for approval | runs if the permissions allow it, else fails |
    | connection to a host that is to be asked for | fails |
    | forbidden | fails |

    Raises NotSupported, naming the field, for `auto_review`: there is no reviewing model yet.
    """
    if mode is not Mode.NONE:
        raise NotSupported("mode", f"{mode} is not available in this version; allowed: none")
    if verdict.outcome is Outcome.FORBIDDEN:
        return _failed("forbidden by a rule, and nobody can approve it", verdict)
    if verdict.kind is Kind.ASK_HOST:
        return _failed("the connection needs approval and nobody is there to give it", verdict)
    if verdict.outcome is Outcome.DANGEROUS:
        missing = _missing(verdict, permissions)
        if missing:
            return _failed(f"the environment does not permit {' or '.join(missing)}", verdict)
        return Decision(Follows.RUN, f"permitted by the environment: {verdict.reason}")
    return Decision(Follows.RUN, verdict.reason)


def host_to_ask(host: str) -> Verdict:
    """Returns the verdict on a connection to a host whose policy is `ask`."""
    reason = f"a connection to {host} is to be asked for"
    return Verdict(Outcome.UNKNOWN, reason, kind=Kind.ASK_HOST)


def tool_to_ask(tool: str) -> Verdict:
    """Returns the verdict on an MCP tool whose rule asks for approval."""
    needs = frozenset({Need.DANGEROUS})
    reason = f"the tool {tool} is to be asked for"
    return Verdict(Outcome.DANGEROUS, reason, kind=Kind.MCP_TOOL, needs=needs)


def _missing(verdict: Verdict, permissions: Permissions) -> list[str]:
    granted = {Need.ROOT: permissions.root, Need.DANGEROUS: permissions.dangerous}
    said = {Need.ROOT: "running as root", Need.DANGEROUS: "dangerous actions"}
    return [said[need] for need in Need if need in verdict.needs and not granted[need]]


def _failed(why: str, verdict: Verdict) -> Decision:
    return Decision(Follows.FAIL, f"{why}: {verdict.reason}")
