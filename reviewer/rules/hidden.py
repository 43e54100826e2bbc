"""Owns how code is seen to come from the network or a decoder straight into an interpreter."""

from reviewer.rules.found import Danger
from reviewer.rules.paths import UNKNOWN
from reviewer.rules.wrappers import SHELLS, positionals, program

FETCHERS = frozenset({"curl", "wget", "fetch", "aria2c", "http", "https", "nc", "ncat", "socat"})
"""Programs that bring text from the network to their output."""

_DECODERS = frozenset(
    {"base64", "base32", "xxd", "openssl", "gunzip", "zcat", "uudecode", "rev", "gpg", "unxz"}
)
_INTERPRETERS = frozenset({"python", "python3", "perl", "ruby", "node", "php", "lua"})


def hidden_code(argv: tuple[str, ...], feeds: frozenset[str]) -> Danger | None:
    """Tells whether a command runs what the programs in `feeds` hand to it."""
    if not feeds or not _runs_what_it_is_fed(argv, program(argv)):
        return None
    if feeds & FETCHERS:
        return Danger.FETCHED_CODE
    return Danger.HIDDEN_CODE if feeds & _DECODERS else None


def _runs_what_it_is_fed(argv: tuple[str, ...], name: str) -> bool:
    if name in _INTERPRETERS or name.startswith("python3."):
        if argv[1:2] == ("-",):
            return True
        return not positionals(argv) and not {"-c", "-e", "-m"} & set(argv)
    if name in SHELLS:
        # With a script of its own that is known, what is fed to it is mere data.
        return "-c" not in argv or UNKNOWN in "".join(argv)
    return name in ("eval", ".", "source")
