"""Owns which commands install packages, and with them run code from elsewhere."""

import re
from collections.abc import Sequence

from reviewer.rules.wrappers import program

_ALWAYS = frozenset({"npx", "uvx", "bunx", "pnpx", "easy_install", "cpanm"})
_SUBCOMMANDS = {
    "apk": "add upgrade",
    "apt": "install upgrade full-upgrade reinstall build-dep",
    "apt-get": "install upgrade dist-upgrade reinstall build-dep",
    "aptitude": "install upgrade full-upgrade reinstall",
    "brew": "install upgrade reinstall",
    "bun": "add install i x create update",
    "bundle": "install update add",
    "cargo": "install binstall",
    "composer": "install require update create-project",
    "conda": "install create update",
    "cpan": "install",
    "deno": "install add",
    "dnf": "install upgrade reinstall",
    "dotnet": "tool add restore",
    "gem": "install update",
    "go": "install get",
    "luarocks": "install build make",
    "mamba": "install create update",
    "micromamba": "install create update",
    "npm": "install i in ins add ci clean-install install-test it exec x create init update up",
    "opam": "install upgrade",
    "pdm": "install add sync update",
    "pip": "install wheel download",
    "pipenv": "install sync update",
    "pipx": "install run inject upgrade",
    "pnpm": "install i add dlx create update up import",
    "poetry": "install add update sync",
    "rustup": "install update",
    "uv": "add sync pip tool run",
    "yarn": "install add dlx create up upgrade",
    "yum": "install update upgrade reinstall",
    "zypper": "install in update up",
}
_KNOWN = {name: frozenset(words.split()) for name, words in _SUBCOMMANDS.items()}
_NESTED = {("uv", "pip"): {"install", "sync"}, ("uv", "tool"): {"install", "run", "upgrade"}}
_PIP = re.compile(r"pip[0-9.]*")
_PYTHON = re.compile(r"python[0-9.]*")


def installs_packages(argv: tuple[str, ...]) -> bool:
    """Tells whether a command installs packages, or fetches one to run it."""
    name = program(argv)
    args = list(argv[1:])
    if _PYTHON.fullmatch(name):
        if "-m" not in args:
            return False
        module = args[args.index("-m") + 1 :]
        name, args = (module[0], module[1:]) if module else ("", [])
    if name in _ALWAYS:
        return True
    if _PIP.fullmatch(name):
        name = "pip"
    known = _KNOWN.get(name)
    if known is None:
        return False
    if name == "yarn" and not args:
        return True
    words = _subcommand(args, known)
    if not words:
        return False
    if name == "uv" and words[0] == "run":
        return any(arg == "--with" or arg.startswith("--with=") for arg in args)
    nested = _NESTED.get((name, words[0]))
    return nested is None or bool(nested & set(words[1:3]))


def _subcommand(args: Sequence[str], known: frozenset[str]) -> list[str]:
    """Returns the operands from the subcommand on, when it is one of those known."""
    first = next((i for i, arg in enumerate(args) if not arg.startswith("-")), len(args))
    words = [arg for arg in args[first:] if not arg.startswith("-")]
    if words and words[0] not in known and first > 0 and "=" not in args[first - 1]:
        words = words[1:]  # the first was an option's value
    return words if words and words[0] in known else []
