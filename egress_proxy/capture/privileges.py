"""Owns giving up the rights that only the helper needs."""

import ctypes
import os
import struct
from pathlib import Path

_SET_NO_NEW_PRIVS = 38
_CAPBSET_DROP = 24
_CAP_AMBIENT, _CLEAR_ALL = 47, 4
_VERSION_3 = 0x20080522
_CAP_SETPCAP = 8


def drop_capabilities() -> None:
    """Leaves the calling thread, and all that it starts, without any capability for good.

    To be called before other threads are started. Raises OSError.
    """
    libc = ctypes.CDLL(None, use_errno=True)

    def checked(result: int, what: str) -> None:
        if result:
            code = ctypes.get_errno()
            raise OSError(code, f"{what}: {os.strerror(code)}")

    checked(libc.prctl(_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
    if _effective() >> _CAP_SETPCAP & 1:
        last = int(Path("/proc/sys/kernel/cap_last_cap").read_text())
        for number in range(last + 1):
            checked(libc.prctl(_CAPBSET_DROP, number, 0, 0, 0), "capability bounding set")
    libc.prctl(_CAP_AMBIENT, _CLEAR_ALL, 0, 0, 0)
    header = ctypes.create_string_buffer(struct.pack("Ii", _VERSION_3, 0), 8)
    checked(libc.capset(header, ctypes.create_string_buffer(bytes(24), 24)), "capset")


def _effective() -> int:
    for line in Path("/proc/thread-self/status").read_text().splitlines():
        if line.startswith("CapEff:"):
            return int(line.split()[1], 16)
    return 0
