from pathlib import Path

import pytest

from reviewer.rules import classify as classify_module
from reviewer.rules.classify import Action, Kind, Need, Outcome, Verdict, classify
from reviewer.rules.prefixes import Rules, load_rules
from tests.reviewer.rules import cases

DEFAULT_FILE = Path(classify_module.__file__).parent / "default.yaml"
DEFAULT = load_rules(DEFAULT_FILE.read_text(encoding="utf-8"))

EXPECTED = [
    *((script, Outcome.SAFE) for script in cases.SAFE),
    *((script, Outcome.UNKNOWN) for script in cases.UNKNOWN),
    *((script, Outcome.UNKNOWN) for script in cases.PACKAGES),
    *((script, Outcome.DANGEROUS) for script in cases.DANGEROUS),
    *((script, Outcome.FORBIDDEN) for script in cases.FORBIDDEN),
]


def judged(script: str, rules: Rules = DEFAULT, **more) -> Verdict:
    return classify(Action(script=script, **more), rules)


def own_rule(prefix: str, decision: str) -> Rules:
    text = f"rules: [{{id: own, prefix: {prefix}, decision: {decision}, justification: because}}]"
    return load_rules(text)


@pytest.mark.parametrize(("script", "outcome"), EXPECTED)
def test_a_script_gets_its_verdict(script, outcome):
    verdict = judged(script)
    assert verdict.outcome == outcome, verdict
    assert verdict.reason


@pytest.mark.parametrize("script", cases.DANGEROUS + cases.FORBIDDEN)
def test_the_same_script_inside_a_shell_is_no_better(script):
    outcome = judged(script).outcome
    assert classify(Action(argv=("bash", "-c", script)), DEFAULT).outcome == outcome


@pytest.mark.parametrize("script", cases.PACKAGES)
def test_package_installations_are_a_kind_of_their_own(script):
    assert judged(script).kind is Kind.PACKAGE_INSTALLATION


@pytest.mark.parametrize("script", cases.UNKNOWN)
def test_other_commands_are_not_package_installations(script):
    assert judged(script).kind is Kind.COMMAND


@pytest.mark.parametrize(
    ("argv", "outcome"),
    [
        (("ls", "-la", "*.py", "$HOME"), Outcome.SAFE),
        (("bash", "-c", "ls && pwd"), Outcome.SAFE),
        (("bash", "-lc", "ls"), Outcome.SAFE),
        (("bash", "-c", "ls > x"), Outcome.UNKNOWN),
        (("bash", "-x", "-c", "ls"), Outcome.UNKNOWN),
        (("./bash", "-c", "ls"), Outcome.UNKNOWN),
        (("rm", "-rf", "/"), Outcome.DANGEROUS),
        (("env", "PATH=/x", "ls"), Outcome.UNKNOWN),
        (("nsenter", "-a"), Outcome.FORBIDDEN),
        (("ls", "a\0b"), Outcome.DANGEROUS),
        ((), Outcome.UNKNOWN),
        (("",), Outcome.UNKNOWN),
    ],
)
def test_an_argument_list_gets_its_verdict(argv, outcome):
    assert classify(Action(argv=argv), DEFAULT).outcome == outcome


def test_root_is_dangerous_and_needs_its_own_permission():
    verdict = judged("ls", as_root=True)
    assert verdict.outcome is Outcome.DANGEROUS
    assert verdict.needs == {Need.ROOT}


def test_root_does_not_cover_what_is_dangerous_besides():
    verdict = judged("rm -rf /etc", as_root=True)
    assert verdict.needs == {Need.ROOT, Need.DANGEROUS}
    assert "root" in verdict.reason and "/etc" in verdict.reason


def test_the_verdict_names_the_command_and_what_found_it():
    verdict = judged("ls; cd x && sudo rm -rf /etc")
    assert verdict.command == "sudo rm -rf /etc"
    assert verdict.rule_id == "root"
    assert "/etc is outside the writable folders" in verdict.reason


def test_a_granted_folder_may_be_written():
    script = "echo x > /data/out.txt"
    assert judged(script).outcome is Outcome.DANGEROUS
    granted = classify(Action(script=script), DEFAULT, writable_roots=("/workspace", "/data"))
    assert granted.outcome is Outcome.UNKNOWN


def test_relative_paths_count_from_the_folder_it_runs_in():
    assert judged("rm -rf *", cwd="/workspace/build").outcome is Outcome.UNKNOWN
    assert judged("rm -rf ../*", cwd="/workspace/build").outcome is Outcome.DANGEROUS
    assert judged("echo x > y", cwd="/etc").outcome is Outcome.DANGEROUS


def test_an_allow_rule_proves_safe_only_what_is_plain():
    rules = own_rule("[make, [test, lint]]", "allow")
    assert judged("make test", rules).outcome is Outcome.SAFE
    assert judged("make test && ls", rules).rule_id == "own"
    assert judged("/usr/bin/make test -j4", rules).outcome is Outcome.SAFE
    for script in (
        "make",
        "make all",
        "make test; ./x",
        "make test <<EOF\nx\nEOF",
        "make test > out.txt",
        "make test <<EOF > /workspace/x\nx\nEOF",
        "PATH=/tmp/evil make test",
        "PATH=/tmp/evil\nmake test",
        "env make test",
        "/tmp/make test",
        "./make test",
        "make test $(./x)",
        "make test &",
        "make() { ./x; }; make test",
        "alias make=./x\nmake test",
    ):
        assert judged(script, rules).outcome is Outcome.UNKNOWN, script


def test_an_allow_rule_does_not_outweigh_danger():
    rules = own_rule("[rm]", "allow")
    assert judged("rm -rf build", rules).outcome is Outcome.SAFE
    assert judged("rm -rf /", rules).outcome is Outcome.DANGEROUS


def test_an_allowed_installation_is_safe():
    rules = own_rule("[npm, ci]", "allow")
    verdict = judged("npm ci", rules)
    assert (verdict.outcome, verdict.kind) == (Outcome.SAFE, Kind.COMMAND)


def test_the_strictest_rule_wins_whatever_the_order():
    allow, review, forbid = (
        own_rule("[git, push]", decision) for decision in ("allow", "review", "forbid")
    )
    assert judged("git push", allow.joined(review)).outcome is Outcome.DANGEROUS
    assert judged("git push", review.joined(allow)).outcome is Outcome.DANGEROUS
    assert judged("git push", forbid.joined(review).joined(allow)).outcome is Outcome.FORBIDDEN
    assert judged("git push", allow.joined(review).joined(forbid)).outcome is Outcome.FORBIDDEN


@pytest.mark.parametrize(
    "script",
    [
        "git push origin",
        "GIT_DIR=x git push",
        "/usr/bin/git push",
        "env -i A=b git push",
        "sudo -u me git push",
        "timeout --odd 5 git push",
        "bash -c 'git push'",
        "X=push; git $X",
        "g'i't push",
        "if x; then git push; fi",
        "echo x | xargs git push",
    ],
)
def test_wrappers_and_assignments_do_not_defeat_a_rule(script):
    assert judged(script, own_rule("[git, push]", "forbid")).outcome is Outcome.FORBIDDEN


def test_a_script_that_is_too_long_to_read_is_dangerous():
    verdict = judged("ls\n" * 100_000)
    assert verdict.outcome is Outcome.DANGEROUS
    assert "longer than 131072 bytes" in verdict.reason


def test_nesting_is_followed_to_its_limit():
    inner = "echo hello"
    for _ in range(3):
        inner = "bash -c " + "'" + inner.replace("'", "'\\''") + "'"
    assert judged(inner).outcome is Outcome.UNKNOWN
    assert judged("nice " * 8 + "ls").outcome is Outcome.UNKNOWN
    assert judged("nice " * 9 + "ls").outcome is Outcome.DANGEROUS
    assert judged("$(" * 200 + "ls" + ")" * 200).outcome is Outcome.DANGEROUS


def test_reasons_stay_short_and_printable():
    verdict = judged("sudo rm -rf /etc/" + "x" * 50_000 + "\x1b[31m; rm -rf /usr\x07")
    assert len(verdict.reason) < 1_500
    assert verdict.reason.isprintable()
    assert verdict.command.isprintable()
