"""Owns what makes a literal command dangerous: destruction, broad rights, writes outside.

It sees one command and where it would run; it knows no rules of the operator and no modes.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from reviewer.rules.found import Command, shown
from reviewer.rules.hidden import FETCHERS
from reviewer.rules.paths import UNKNOWN, Places
from reviewer.rules.wrappers import ROOT_GRANTERS, positionals


class Hazard(StrEnum):
    """The kinds of danger in a single command; rules may name them."""

    REMOVAL = "removal"
    DISK = "disk"
    SHUTDOWN = "shutdown"
    RIGHTS = "rights"
    KILL_ALL = "kill_all"
    OUTSIDE_WRITE = "outside_write"
    METADATA_ADDRESS = "metadata_address"
    ROOT = "root"


@dataclass(frozen=True)
class Hazardous:
    """One hazard and, in words fit for the agent, what it is."""

    hazard: Hazard
    reason: str


_DISK_TOOLS = frozenset(
    "mke2fs wipefs fdisk sfdisk sgdisk parted mkswap swapoff cryptsetup losetup blkdiscard".split()
)
_SHUTDOWN_TOOLS = frozenset({"shutdown", "reboot", "halt", "poweroff", "kexec"})
_SYSTEMCTL = frozenset({"poweroff", "reboot", "halt", "kexec", "rescue", "emergency"})
_FIND_FILTERS = frozenset(
    "-name -iname -path -ipath -wholename -regex -iregex -mtime -mmin -newer -size -empty "
    "-user -group -perm -atime -ctime -amin -cmin -links -samefile -inum -lname".split()
)
_DISCARDS = frozenset({"/dev/null", "/dev/zero", "/dev/stdout", "/dev/stderr", "/dev/full"})
_METADATA_NAMES = (
    "169.254.169.254", "169.254.170.2", "169.254.170.23", "100.100.100.200", "fd00:ec2::254",
    "2852039166", "0xa9fea9fe", "0251.0376.0251.0376", "metadata.google.internal",
)  # fmt: skip
_METADATA = re.compile(
    r"(?<![\w.:])(?:" + "|".join(map(re.escape, _METADATA_NAMES)) + r")(?![\w.])", re.IGNORECASE
)
_CALLERS = FETCHERS | frozenset(
    "telnet ssh ping openssl lynx links w3m xh httpie grpcurl websocat dig nslookup".split()
)
_WRITES_ALL = frozenset({"tee", "truncate", "touch", "mkdir", "rmdir", "shred", "mkfifo"})
_WRITES_LAST = frozenset({"cp", "mv", "ln", "install", "rsync"})
_WORLD = re.compile(r"0?[0-7]?[0-7][0-7][2367]|[ugo]*[ao][ugo]*\+\w*w\w*|\+\w*w\w*")
_SETUID = re.compile(r"0*[4-7][0-7]{3}|(?:[goa]*u[ugoa]*|a?)[+=][rwxXt]*s[rwxXst]*")


def hazards(command: Command, places: Places) -> list[Hazardous]:
    """Returns what is dangerous in a command; empty when nothing known is."""
    name, argv = command.name, command.argv
    found = _outside_writes(command, name, places)
    if not argv:
        return found
    if name in ROOT_GRANTERS:
        found.append(Hazardous(Hazard.ROOT, f"{name} asks for another user's rights"))
    if (name in _CALLERS or name == UNKNOWN) and _METADATA.search(" ".join(argv[1:])):
        found.append(Hazardous(Hazard.METADATA_ADDRESS, "it calls the metadata service"))
    check = _CHECKS.get(name)
    if name.startswith("mkfs") or name in _DISK_TOOLS:
        found.append(Hazardous(Hazard.DISK, f"{name} changes disks or file systems"))
    elif name in _SHUTDOWN_TOOLS:
        found.append(Hazardous(Hazard.SHUTDOWN, f"{name} stops the machine"))
    elif check is not None:
        found += check(command, places)
    return found


def _outside_writes(command: Command, name: str, places: Places) -> list[Hazardous]:
    targets = list(command.writes)
    if name in _WRITES_ALL:
        targets += positionals(command.argv, "mst")
    elif name in _WRITES_LAST:
        targets += positionals(command.argv, "mst")[1:][-1:]
    found: list[Hazardous] = []
    for target in targets:
        if target.startswith(("/dev/tcp/", "/dev/udp/")):
            hazard = Hazard.METADATA_ADDRESS if _METADATA.search(target) else Hazard.OUTSIDE_WRITE
            found.append(Hazardous(hazard, f"it opens a connection to {shown(target[9:])}"))
        elif places.outside(target, command.cwds):
            reason = f"it writes {shown(target)}, outside {', '.join(places.roots)}"
            found.append(Hazardous(Hazard.OUTSIDE_WRITE, reason))
    return found


def _removal(command: Command, places: Places) -> list[Hazardous]:
    recursive = _has_flag(command.argv, "rR", "--recursive")
    for target in positionals(command.argv):
        why = places.precious(target, command.cwds)
        if why and (recursive or UNKNOWN not in target):
            return [Hazardous(Hazard.REMOVAL, f"removal of {shown(target)}: {shown(why)}")]
    return []


def _find(command: Command, places: Places) -> list[Hazardous]:
    argv = command.argv
    runs_rm = any(
        word in ("-exec", "-execdir", "-ok", "-okdir") and _runs_rm(argv[index + 1 : index + 4])
        for index, word in enumerate(argv)
    )
    if "-delete" not in argv and not runs_rm:
        return []
    filtered = bool(_FIND_FILTERS & set(argv))
    for start in _find_starts(argv):
        why = places.precious(start, command.cwds)
        if why and (not filtered or places.outside(start, command.cwds)):
            return [Hazardous(Hazard.REMOVAL, f"removal under {shown(start)}: {shown(why)}")]
    return []


def _runs_rm(words: Sequence[str]) -> bool:
    return any(word.rsplit("/", 1)[-1] in ("rm", "shred", "unlink") for word in words)


def _find_starts(argv: Sequence[str]) -> list[str]:
    starts: list[str] = []
    for word in argv[1:]:
        if word in ("-H", "-L", "-P"):
            continue
        if word.startswith(("-", "(", "!")):
            break
        starts.append(word)
    return starts or ["."]


def _dd(command: Command, places: Places) -> list[Hazardous]:
    for word in command.argv[1:]:
        key, _, target = word.partition("=")
        if key != "of" or target in _DISCARDS:
            continue
        if target.startswith("/dev/") and not target.startswith("/dev/shm/"):
            return [Hazardous(Hazard.DISK, f"dd writes to the device {shown(target)}")]
        if places.outside(target, command.cwds):
            return [Hazardous(Hazard.OUTSIDE_WRITE, f"dd writes {shown(target)}")]
    return []


def _chmod(command: Command, places: Places) -> list[Hazardous]:
    recursive = _has_flag(command.argv, "R", "--recursive")
    words = [word for word in command.argv[1:] if not word.startswith("--")]
    modes = [word for word in words if not word.startswith("-") or _SETUID.fullmatch(word[1:])]
    mode, targets = (modes[0], modes[1:]) if modes else ("", [])
    if _SETUID.fullmatch(mode):
        return [Hazardous(Hazard.RIGHTS, "it lends a file its owner's rights (setuid)")]
    for target in targets if recursive else []:
        if places.outside(target, command.cwds):
            return [Hazardous(Hazard.RIGHTS, f"it changes rights on all of {shown(target)}")]
        if _WORLD.fullmatch(mode) and target.startswith(UNKNOWN):
            return [Hazardous(Hazard.RIGHTS, "it opens a folder to all that cannot be known")]
    return []


def _chown(command: Command, places: Places) -> list[Hazardous]:
    if _has_flag(command.argv, "R", "--recursive"):
        return [Hazardous(Hazard.RIGHTS, f"{command.name} changes the owner of a whole tree")]
    return []


def _kill(command: Command, places: Places) -> list[Hazardous]:
    args = list(command.argv[1:])
    operands = args[1:] if args and args[0].startswith("-") and len(args) > 1 else args
    if args[:1] in (["-s"], ["-n"]):
        operands = args[2:]
    if any(word in ("-1", "1") for word in operands):
        return [Hazardous(Hazard.KILL_ALL, "it kills every process, or the container's first")]
    return []


def _killall5(command: Command, places: Places) -> list[Hazardous]:
    return [Hazardous(Hazard.KILL_ALL, "it kills every process")]


def _systemctl(command: Command, places: Places) -> list[Hazardous]:
    if _SYSTEMCTL & set(command.argv):
        return [Hazardous(Hazard.SHUTDOWN, "it stops the machine")]
    return []


def _init(command: Command, places: Places) -> list[Hazardous]:
    if command.argv[1:2] in (("0",), ("6",)):
        return [Hazardous(Hazard.SHUTDOWN, "it stops the machine")]
    return []


def _has_flag(argv: Sequence[str], letters: str, long: str) -> bool:
    """Tells whether an option is given; long ones may be shortened."""
    for word in argv[1:]:
        if word == "--":
            return False
        if word.startswith("--"):
            if len(word) > 3 and long.startswith(word):
                return True
        elif word.startswith("-") and set(word[1:]) & set(letters):
            return True
    return False


_CHECKS: dict[str, Callable[[Command, Places], list[Hazardous]]] = {
    "chgrp": _chown,
    "chmod": _chmod,
    "chown": _chown,
    "dd": _dd,
    "find": _find,
    "init": _init,
    "kill": _kill,
    "killall5": _killall5,
    "rm": _removal,
    "shred": _removal,
    "srm": _removal,
    "systemctl": _systemctl,
    "telinit": _init,
    "unlink": _removal,
}
