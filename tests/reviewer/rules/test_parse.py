import pytest

from reviewer.rules.found import Danger
from reviewer.rules.parse import parse_loose, parse_loose_argv, parse_strict
from reviewer.rules.paths import ELSEWHERE, UNKNOWN
from reviewer.rules.syntax import parse_tree


def commands(script: str) -> list[tuple[str, ...]]:
    return [command.argv for command in parse_loose(script).commands]


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("ls", [("ls",)]),
        ("ls -l 'a b' \"c d\" 12", [("ls", "-l", "a b", "c d", "12")]),
        ("a'b'\"c\"d", [("abcd",)]),
        ("x '' y", [("x", "", "y")]),
        ("a && b || c; d | e\nf\n", [("a",), ("b",), ("c",), ("d",), ("e",), ("f",)]),
        ("echo 'a\nb'", [("echo", "a\nb")]),
        ("echo 'é'", [("echo", "é")]),
    ],
)
def test_plain_commands_are_read_word_by_word(script, expected):
    assert parse_strict(script) == tuple(expected)


@pytest.mark.parametrize(
    "script",
    [
        "",
        "ls > x",
        "ls < x",
        "ls 2>&1",
        "cat <<E\nx\nE",
        "cat <<< x",
        "A=b",
        "A=b ls",
        "export A=b",
        "ls &",
        "a |& b",
        "(ls)",
        "{ ls; }",
        "! ls",
        "if a; then b; fi",
        "for a in b; do c; done",
        "f() { ls; }",
        "[ -f x ]",
        "[[ -f x ]]",
        "((1))",
        "ls $x",
        'ls "$x"',
        "ls $(x)",
        "ls `x`",
        "ls <(x)",
        "ls *",
        "ls ?",
        "ls [a]",
        "ls {a,b}",
        "ls ~",
        "ls a\\ b",
        'ls "a\\"b"',
        'ls "!x"',
        "ls \\\n x",
        "ls # x",
        "ls =x",
        "ls a^b",
        "ls é",
        "ls $'x'",
        'ls $"x"',
        "ls 'x",
        'ls "x',
        "ls\r\nls",
        "ls \x01",
        "ls ;; ls",
        "ls\0",
        "ls\u2028rm",
        "ls\u00a0-l",
    ],
)
def test_everything_else_is_not_proven(script):
    assert parse_strict(script) is None


def test_values_are_followed_where_the_script_sets_them():
    assert ("rm", "-rf", "/x") in commands("A=/x; rm -rf $A")
    assert ("rm", "a", "b") in commands("A='a b'; rm $A")
    assert ("rm", "a b") in commands("A='a b'; rm \"$A\"")
    assert ("rm", UNKNOWN) in commands("rm $A")
    assert ("cat", "/workspace/x") in commands("cat ~/x $B"[:7])
    assert {("rm", "a"), ("rm", "b")} <= set(commands("for f in a b; do rm $f; done"))
    assert ("ls", "a1", "a2") in commands("ls a{1,2}")
    assert ("ls", "{a,b}", "$x", "*") in commands("ls '{a,b}' '$x' \"*\"")


def test_the_folder_is_followed():
    found = parse_loose("cd a && pwd; (cd /b; id); cd $X && id -u").commands
    places = {command.argv: command.cwds for command in found}
    assert places["pwd",] == ("/workspace/a",)
    assert "/b" in places["id",]
    assert places["id", "-u"] == (ELSEWHERE,)


def test_redirects_are_kept_with_their_command():
    (command,) = parse_loose("echo x 2>&1 > /a 2>> b < c").commands
    assert command.argv == ("echo", "x")
    assert command.writes == ("1", "/a", "b")


def test_arguments_without_a_shell_are_taken_as_they_are():
    (command,) = parse_loose_argv(("echo", "$(rm -rf /)", "; ls")).commands
    assert command.argv == ("echo", "$(rm -rf /)", "; ls")


def test_a_slow_clock_stops_the_reading():
    ticks = iter(range(1_000_000))
    loose = parse_loose("ls; " * 2_000, clock=lambda: float(next(ticks)))
    assert [finding.danger for finding in loose.findings] == [Danger.TOO_LARGE]


def test_a_slow_clock_stops_the_parser():
    ticks = iter(range(1_000_000))
    syntax = parse_tree("echo x\n" * 2_000, clock=lambda: float(next(ticks)))
    assert syntax.root is None
    assert "too intricate" in syntax.problem
