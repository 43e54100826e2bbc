"""Owns the programs that run another program or script given in their arguments.

Options are read as far as the table knows them. Where an option is not in the table, every later
word may begin the inner command: too many are better than none, since this can only find danger.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from reviewer.rules.paths import UNKNOWN

SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ksh", "ash", "mksh", "rbash"})
ROOT_GRANTERS = frozenset({"sudo", "doas", "su", "pkexec", "runuser"})

_MAX_GUESSES = 16


@dataclass(frozen=True)
class Inner:
    """What a command runs: a program with arguments, or a script for a shell."""

    argv: tuple[str, ...] = ()
    script: str | None = None
    reads_stdin: bool = False
    """The inner program is a shell that takes its script from standard input."""
    appends_stdin: bool = False
    """Words from standard input become further arguments."""
    assignments: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class _Options:
    """Which options of a wrapper take a value, and how many words precede the inner command."""

    short: str = ""
    long: str = ""
    flags: str = ""
    words: int = 0
    assigns: bool = False


_WRAPPERS = {
    "builtin": _Options(),
    "catchsegv": _Options(),
    "chroot": _Options(long="userspec groups", words=1),
    "chrt": _Options("TPD", "sched-runtime sched-period sched-deadline", "abdfiormpv", words=1),
    "command": _Options(flags="p"),
    "coproc": _Options(),
    "doas": _Options("uC", flags="Lns"),
    "env": _Options("uC", "unset chdir", "i0v", assigns=True),
    "exec": _Options("a", flags="cl"),
    "fakeroot": _Options(),
    "flock": _Options("wE", "wait conflict-exit-code timeout", "sxneuoF", words=1),
    "gosu": _Options(words=1),
    "ionice": _Options("cn", "class classdata", "t"),
    "nice": _Options("n", "adjustment", "0123456789"),
    "nohup": _Options(),
    "pkexec": _Options(long="user"),
    "setsid": _Options(flags="cfw"),
    "stdbuf": _Options("ioe", "input output error"),
    "strace": _Options("oeEpPsSuabIOX", flags="cCdfFhiqrtTvVxyzZ"),
    "su-exec": _Options(words=1),
    "sudo": _Options(
        "ugpCDhRTtrU",
        "user group prompt close-from chdir host chroot command-timeout type role other-user",
        "AbEHiKklnPSsVv",
        assigns=True,
    ),
    "taskset": _Options(flags="ac", words=1),
    "time": _Options("fo", "format output", "apvqV"),
    "timeout": _Options("ks", "kill-after signal", "v", words=1),
    "torsocks": _Options(),
    "xvfb-run": _Options("enps", flags="al"),
}
_LONG_FLAGS = frozenset(
    "foreground preserve-status verbose ignore-environment null debug login shell background "
    "non-interactive set-home preserve-env stdin reset-timestamp append portability quiet "
    "no-run-if-empty open-tty interactive exit wait fork ctty ignore all-tasks cpu-list "
    "shared exclusive nonblock close no-fork".split()
)
_XARGS = _Options(
    "aEILnPsd",
    "arg-file delimiter max-args max-lines max-procs max-chars process-slot-var replace",
    "0eilprtx",
)


def unwrap(argv: tuple[str, ...]) -> Iterator[Inner]:
    """Yields what a command would run in turn; nothing for a program that runs no other."""
    name = program(argv)
    if argv and argv[0] == UNKNOWN and len(argv) > 1:
        # It may be empty or a wrapper: `$SUDO command`.
        yield Inner(argv=tuple(argv[1:]))
    elif name in SHELLS:
        yield from _shell(argv)
    elif name in _SPECIAL:
        yield from _SPECIAL[name](argv)
    elif name in _WRAPPERS:
        yield from _wrapped(argv, _WRAPPERS[name])


def program(argv: tuple[str, ...]) -> str:
    """Returns the name of the program without its folder."""
    return argv[0].rsplit("/", 1)[-1] if argv else ""


def is_wrapper(name: str) -> bool:
    """Tells whether a program's arguments may name another program."""
    return name in _WRAPPERS or name in _SPECIAL or name in SHELLS


def positionals(argv: tuple[str, ...], value_options: str = "") -> list[str]:
    """Returns the operands: what is neither an option nor the value of a short one listed."""
    found: list[str] = []
    words = iter(argv[1:])
    for word in words:
        if word == "--":
            found.extend(words)
        elif not word.startswith("-") or word == "-":
            found.append(word)
        elif len(word) == 2 and word[1] in value_options:
            next(words, None)
    return found


def _wrapped(argv: tuple[str, ...], options: _Options) -> Iterator[Inner]:
    if program(argv) == "command" and any(w in ("-v", "-V") for w in argv[1:2]):
        return
    starts, assignments = _inner_starts(argv, options)
    for start in starts:
        if start < len(argv):
            yield Inner(argv=tuple(argv[start:]), assignments=assignments)


def _inner_starts(
    argv: tuple[str, ...], options: _Options
) -> tuple[list[int], tuple[tuple[str, str], ...]]:
    """Returns where the inner command may begin, and what is assigned before it."""
    long = options.long.split()
    assignments: list[tuple[str, str]] = []
    index = 1
    while index < len(argv):
        word = argv[index]
        if word == "--":
            index += 1
            break
        if options.assigns and "=" in word and not word.startswith("-"):
            name, _, value = word.partition("=")
            assignments.append((name, value))
        elif word == "-" and options.assigns:
            pass  # `env -` clears the environment
        elif not word.startswith("-") or word == "-":
            break
        elif word.startswith("--"):
            key = word[2:].partition("=")[0]
            if key in long:
                index += "=" not in word
            elif key not in _LONG_FLAGS and "=" not in word:
                return _guesses(argv, index), tuple(assignments)
        elif word[1] in options.short:
            index += len(word) == 2
        elif not set(word[1:]) <= set(options.flags):
            return _guesses(argv, index), tuple(assignments)
        index += 1
    return [index + options.words], tuple(assignments)


def _guesses(argv: tuple[str, ...], index: int) -> list[int]:
    return list(range(index + 1, min(len(argv), index + 1 + _MAX_GUESSES)))


def _shell(argv: tuple[str, ...]) -> Iterator[Inner]:
    command = False
    index = 1
    while index < len(argv) and argv[index][:1] in ("-", "+") and len(argv[index]) > 1:
        word = argv[index]
        if word == "--":
            index += 1
            break
        short = not word.startswith("--")
        command = command or (short and word[0] == "-" and "c" in word)
        takes_value = short and ("o" in word[1:] or "O" in word[1:])
        index += 2 if takes_value or word in ("--rcfile", "--init-file") else 1
    if command:
        if index < len(argv):
            yield Inner(script=argv[index])
    elif index >= len(argv) or argv[index] in ("-", "/dev/stdin") or "-s" in argv[1:index]:
        yield Inner(reads_stdin=True)


def _eval(argv: tuple[str, ...]) -> Iterator[Inner]:
    words = argv[2:] if argv[1:2] == ("--",) else argv[1:]
    yield Inner(script=" ".join(words))


def _trap(argv: tuple[str, ...]) -> Iterator[Inner]:
    operands = positionals(argv)
    if len(operands) > 1:
        yield Inner(script=operands[0])


def _alias(argv: tuple[str, ...]) -> Iterator[Inner]:
    for word in argv[1:]:
        if "=" in word:
            yield Inner(script=word.partition("=")[2])


def _command_option(argv: tuple[str, ...]) -> Iterator[Inner]:
    """`su`, `runuser`, `script`: the value of -c is a script."""
    for index, word in enumerate(argv[1:], 1):
        if word.startswith("--command="):
            yield Inner(script=word.partition("=")[2])
        elif word == "--command" or (word[:1] == "-" and word[:2] != "--" and word[-1:] == "c"):
            yield Inner(script=" ".join(argv[index + 1 : index + 2]))
        elif word == "--":
            yield Inner(argv=tuple(argv[index + 1 :]))


def _env(argv: tuple[str, ...]) -> Iterator[Inner]:
    for index, word in enumerate(argv[1:], 1):
        split = word.startswith("--split-string") or (
            word.startswith("-") and not word.startswith("--") and "S" in word
        )
        if split:
            value = word.partition("=" if word.startswith("--") else "S")[2]
            yield Inner(script=" ".join([value, *argv[index + 1 :]]))
            return
    yield from _wrapped(argv, _WRAPPERS["env"])


def _flock(argv: tuple[str, ...]) -> Iterator[Inner]:
    yield from _command_option(argv)
    yield from _wrapped(argv, _WRAPPERS["flock"])


def _find(argv: tuple[str, ...]) -> Iterator[Inner]:
    index = 0
    while index < len(argv):
        if argv[index] in ("-exec", "-execdir", "-ok", "-okdir"):
            start = index + 1
            while index < len(argv) and argv[index] not in (";", "+"):
                index += 1
            if start < index:
                yield Inner(argv=tuple(argv[start:index]))
        index += 1


def _xargs(argv: tuple[str, ...]) -> Iterator[Inner]:
    for start in _inner_starts(argv, _XARGS)[0]:
        if start < len(argv):
            yield Inner(argv=tuple(argv[start:]), appends_stdin=True)


def _watch(argv: tuple[str, ...]) -> Iterator[Inner]:
    words = positionals(argv, "n")
    if words:
        yield Inner(script=" ".join(words))


def _applet(argv: tuple[str, ...]) -> Iterator[Inner]:
    if len(argv) > 1:
        yield Inner(argv=tuple(argv[1:]))


def _anything(argv: tuple[str, ...]) -> Iterator[Inner]:
    for start in _guesses(argv, 0):
        yield Inner(argv=tuple(argv[start:]))


def _source(argv: tuple[str, ...]) -> Iterator[Inner]:
    if argv[1:2] in (("/dev/stdin",), ("-",)):
        yield Inner(reads_stdin=True)


_SPECIAL: dict[str, Callable[[tuple[str, ...]], Iterator[Inner]]] = {
    ".": _source,
    "alias": _alias,
    "busybox": _applet,
    "env": _env,
    "eval": _eval,
    "find": _find,
    "flock": _flock,
    "parallel": _anything,
    "runuser": _command_option,
    "script": _command_option,
    "setpriv": _anything,
    "source": _source,
    "su": _command_option,
    "toybox": _applet,
    "trap": _trap,
    "unshare": _anything,
    "watch": _watch,
    "xargs": _xargs,
}
