"""Owns the list of programs that only read, and which of their options do more than that.

Deliberately absent: git (hooks, pagers, aliases and configuration run programs), awk and sed
scripts other than printing lines, tee, less, anything that takes a program as an argument.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

STANDARD_FOLDERS = (
    "/bin", "/sbin", "/usr/bin", "/usr/sbin", "/usr/local/bin", "/usr/local/sbin",
)  # fmt: skip
"""Where an absolute path to a program may lie for the program to be known by its name."""

_SED_PRINT = re.compile(r"[0-9]{1,9}(,([0-9]{1,9}|\$))?p")


@dataclass(frozen=True)
class _Limits:
    """What takes a program off the list: options, given whole or shortened, or operands."""

    short: str = ""
    long: tuple[str, ...] = ()
    words: frozenset[str] = frozenset()
    operands: Callable[[Sequence[str]], bool] | None = None

    def admit(self, args: Sequence[str]) -> bool:
        for arg in args:
            name = arg.partition("=")[0]
            if name in self.words:
                return False
            if name.startswith("--"):
                if len(name) > 2 and any(option.startswith(name) for option in self.long):
                    return False
            elif name.startswith("-") and set(name[1:]) & set(self.short):
                return False
        return self.operands is None or self.operands(args)


def _sed_prints_lines(args: Sequence[str]) -> bool:
    return (
        len(args) >= 2
        and args[0] == "-n"
        and _SED_PRINT.fullmatch(args[1]) is not None
        and not any(arg.startswith("-") for arg in args[2:])
    )


def _dates_only(args: Sequence[str]) -> bool:
    return all(arg.startswith(("+", "-u", "--utc", "-I", "-R", "--iso", "--rfc")) for arg in args)


_FIND_ACTIONS = frozenset(
    {"-exec", "-execdir", "-ok", "-okdir", "-delete", "-fls", "-fprint", "-fprint0", "-fprintf"}
)
_ANY = _Limits()
_PLAIN = (
    "[ basename cat cd cksum cmp column comm cut dirname df diff du echo egrep expand expr false "
    "fgrep fmt fold getconf grep groups head id join jq ls lscpu md5sum nl nproc numfmt od paste "
    "printenv ps pwd readlink realpath rev seq sha1sum sha256sum sha512sum sleep stat strings tac "
    "tail test tr true tsort tty type uname unexpand uptime wc which whoami"
)
_SAFE: dict[str, _Limits] = {name: _ANY for name in _PLAIN.split()} | {
    "base64": _Limits("o", ("--output",)),
    "date": _Limits(operands=_dates_only),
    "file": _Limits("Cz", ("--compile", "--uncompress")),
    "find": _Limits(words=_FIND_ACTIONS),
    "printf": _Limits("v"),
    "rg": _Limits("z", ("--pre", "--hostname-bin", "--search-zip")),
    "sed": _Limits(operands=_sed_prints_lines),
    "shuf": _Limits("o", ("--output",)),
    "sort": _Limits("o", ("--output", "--compress-program")),
    "tree": _Limits("oR"),
    "uniq": _Limits(operands=lambda args: sum(not a.startswith("-") for a in args) <= 1),
}


def program_name(program: str) -> str | None:
    """Returns the name by which a program is known: bare, or from a standard folder."""
    if "/" not in program:
        return program
    folder, _, name = program.rpartition("/")
    return name if folder in STANDARD_FOLDERS else None


def is_safe(argv: Sequence[str]) -> bool:
    """Tells whether a literal command is known to do nothing but read and print."""
    name = program_name(argv[0]) if argv else None
    limits = _SAFE.get(name) if name else None
    return limits is not None and limits.admit(argv[1:])
