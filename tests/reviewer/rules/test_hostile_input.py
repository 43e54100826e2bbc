import random
import time

import pytest

from reviewer.rules.classify import Action, Outcome, classify
from reviewer.rules.dangers import hazards
from reviewer.rules.parse import parse_loose, parse_loose_argv, parse_strict
from reviewer.rules.paths import Places
from reviewer.rules.prefixes import Rules

SEED = 20260
CASES = 600
FRAGMENTS = [
    *"()[]{}<>|&;$`'\"\\#!~*?=^ \t\n\r\0\x01\x02\x06\x7f",
    *["\udcff", "\ud800", "é", "\u2028", "\U0001f600", "$(", "${", "$((", "<(", "<<", "<<<", "))"],
    *["&&", "||", ";;", ">&", "2>", "$'", '$"', "<<EOF\n", "\nEOF\n", "{a,b}", "a=", "x+=", "$x"],
    *["if ", "then ", "fi ", "for x in ", "do ", "done ", "case x in ", "esac ", "f() ", "[ ", "]"],
    *["rm -rf ", "/ ", "ls ", "cat ", "echo ", "sudo ", "env ", "timeout 5 ", "xargs ", "eval "],
    *["bash -c ", "find . -exec ", "cd ", "curl x ", "| sh", "sort -o ", "trap ", "alias x=", "%s"],
    *["/etc/", "/workspace", "~/", "*", "..", "-", "--", "1", "0x", "a", "b c ", "${x:-", ":?"],
]


def generated():
    random_source = random.Random(SEED)
    for _ in range(CASES):
        yield "".join(random_source.choices(FRAGMENTS, k=random_source.randint(1, 40)))


def test_no_text_makes_the_reading_fail():
    for script in generated():
        parse_strict(script)
        parse_loose(script)
        parse_loose_argv(tuple(script.split(" ")))
        verdict = classify(Action(script=script), Rules())
        assert verdict.reason, script


def test_what_is_proven_safe_is_never_found_dangerous():
    proven = 0
    random_source = random.Random(SEED)
    plain = ["ls", "cat", "echo", "grep", "sort", "find", "sed", "head", "cd", "-n", "1,5p", "-la"]
    plain += ["'a b'", '"c d"', "x.txt", "/etc/passwd", "..", "rm", "'rm -rf /'", "-o", "-delete"]
    joints = [" ", " ", " ", " && ", " | ", "; ", "\n", " || "]
    for _ in range(CASES):
        words = random_source.choices(plain, k=random_source.randint(1, 10))
        script = "".join(word + random_source.choice(joints) for word in words).strip(" \n&|;")
        if classify(Action(script=script), Rules()).outcome is not Outcome.SAFE:
            continue
        proven += 1
        loose = parse_loose(script)
        assert not loose.findings, script
        for command in loose.commands:
            assert not hazards(command, Places()), script
    assert proven > 50


def test_both_readings_agree_on_plain_commands():
    for script in generated():
        strict = parse_strict(script)
        if strict is not None:
            loose = {command.argv for command in parse_loose(script).commands}
            assert set(strict) <= loose, script


@pytest.mark.parametrize(
    "script",
    [
        "(" * (1 << 20),
        "\0" * (1 << 20),
        "ls\0-la",
        "\udcff\udcfe ls",
        "\ud800",
        "'" * 4_001,
        '"' * 4_001,
        "`" * 4_001,
        "${" * 4_000,
        "))" * 4_000,
        "a|" * 4_000,
        "x=(" * 4_000,
        "<<A " * 4_000,
        "eval " * 4_000,
        'bash -c "' * 4_000,
        "env -S " * 4_000,
        "cd x && " * 4_000,
        "a=$a$a;" * 4_000,
        "{a,b}" * 4_000,
        "bash <<A\nls\nA\n" * 4_000,
        "case x in (" * 4_000,
        "echo $(echo " * 4_000,
    ],
    ids=lambda script: repr(script[:12]),
)
def test_hostile_texts_end_in_bounded_time(script):
    start = time.process_time()
    assert classify(Action(script=script), Rules()).outcome is not Outcome.SAFE
    assert time.process_time() - start < 5
