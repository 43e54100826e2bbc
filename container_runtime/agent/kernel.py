"""The system calls that the standard library does not offer per thread, by ctypes.

Owns no state. Credentials set here are the calling thread's alone (raw system calls; glibc's own
wrappers would change every thread).
"""

from __future__ import annotations

import ctypes
import os

_libc = ctypes.CDLL(None, use_errno=True)
_syscall = _libc.syscall
_syscall.restype = ctypes.c_long

_NUMBERS = {
    "x86_64": {"setresuid": 117, "setresgid": 119, "setgroups": 116, "capget": 125, "capset": 126},
    "aarch64": {"setresuid": 147, "setresgid": 149, "setgroups": 159, "capget": 90, "capset": 91},
}

_PR_SET_DUMPABLE = 4
_CAPABILITY_VERSION_3 = 0x20080522
_CAP_SETGID = 1 << 6

SPAWN_SETSIGDEF, SPAWN_SETSIGMASK, SPAWN_SETSID = 0x04, 0x08, 0x80


def _call(name: str, *arguments: object) -> None:
    number = _NUMBERS[os.uname().machine][name]
    if _syscall(ctypes.c_long(number), *arguments) != 0:
        failed = ctypes.get_errno()
        raise OSError(failed, f"{name}: {os.strerror(failed)}")


def forbid_tracing() -> None:
    """Clear the dumpable flag: nobody without CAP_SYS_PTRACE reads or traces this process."""
    _libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def share_one_heap() -> None:
    """Let all threads allocate from one heap: they are few and a heap each costs memory."""
    _libc.mallopt(-8, 1)  # M_ARENA_MAX


def give_memory_back() -> None:
    """Return freed memory to the kernel; takes about a millisecond."""
    _libc.malloc_trim(ctypes.c_size_t(0))


def _set_ids(call: str, real: int, effective: int, saved: int) -> None:
    _call(call, ctypes.c_uint(real), ctypes.c_uint(effective), ctypes.c_uint(saved))


def set_groups(*groups: int) -> None:
    """Set this thread's supplementary groups."""
    array = (ctypes.c_uint * len(groups))(*groups)
    _call("setgroups", ctypes.c_size_t(len(groups)), array)


def become_user(uid: int, gid: int) -> None:
    """Give this thread a user's identity, keeping only the right to change its groups.

    The saved ids stay 0, so that the user's own processes cannot set resource limits of this
    process through the thread; exec makes them the user's.
    """
    _set_ids("setresgid", gid, gid, 0)
    _set_ids("setresuid", uid, uid, 0)
    head = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    sets = (ctypes.c_uint32 * 6)()
    _call("capget", head, sets)
    sets[0], sets[2], sets[3], sets[5] = _CAP_SETGID, 0, 0, 0
    _call("capset", head, sets)


def become_root() -> None:
    """Give this thread root's identity and all capabilities that the process may have."""
    _set_ids("setresuid", 0, 0, 0)
    _set_ids("setresgid", 0, 0, 0)


def rename_new(source: bytes, target: bytes) -> None:
    """Rename unless the target exists."""
    if _libc.renameat2(-100, source, -100, target, 1) != 0:
        failed = ctypes.get_errno()
        raise OSError(failed, os.strerror(failed))


class Spawner:
    """posix_spawn with a working directory, a session of its own and default signals.

    The interpreter's lock is free while the kernel is at it, and the child is made by vfork.
    Used by one thread.
    """

    def __init__(self, default_signals: tuple[int, ...]) -> None:
        self._attributes = ctypes.create_string_buffer(512)
        self._actions = ctypes.create_string_buffer(256)
        _libc.posix_spawnattr_init(self._attributes)
        flags = SPAWN_SETSIGDEF | SPAWN_SETSIGMASK | SPAWN_SETSID
        _libc.posix_spawnattr_setflags(self._attributes, ctypes.c_short(flags))
        signals = ctypes.create_string_buffer(128)
        _libc.sigemptyset(signals)
        _libc.posix_spawnattr_setsigmask(self._attributes, signals)
        for number in default_signals:
            _libc.sigaddset(signals, number)
        _libc.posix_spawnattr_setsigdefault(self._attributes, signals)
        self._pid = ctypes.c_int()
        self._pid_reference = ctypes.byref(self._pid)

    def spawn(
        self,
        program: bytes,
        argv: list[bytes],
        env: list[bytes],
        cwd: int,
        streams: tuple[int, int, int],
        terminal: bytes | None,
        kept: int = -1,
    ) -> int:
        """Start a program and return its pid; OSError when it cannot be.

        `cwd` is a directory descriptor. `streams` become 0, 1 and 2; with `terminal` (a path) it
        is opened instead and becomes the controlling terminal. `kept` becomes descriptor 3."""
        actions = self._actions
        _libc.posix_spawn_file_actions_init(actions)
        try:
            if terminal is not None:
                _libc.posix_spawn_file_actions_addopen(actions, 0, terminal, os.O_RDWR, 0)
                _libc.posix_spawn_file_actions_adddup2(actions, 0, 1)
                _libc.posix_spawn_file_actions_adddup2(actions, 0, 2)
            else:
                for target, stream in enumerate(streams):
                    _libc.posix_spawn_file_actions_adddup2(actions, stream, target)
            _libc.posix_spawn_file_actions_addfchdir_np(actions, cwd)
            if kept >= 0:
                _libc.posix_spawn_file_actions_adddup2(actions, kept, 3)
            failed = _libc.posix_spawn(
                self._pid_reference,
                program,
                actions,
                self._attributes,
                (ctypes.c_char_p * (len(argv) + 1))(*argv),
                (ctypes.c_char_p * (len(env) + 1))(*env),
            )
        finally:
            _libc.posix_spawn_file_actions_destroy(actions)
        if failed:
            raise OSError(failed, os.strerror(failed))
        return self._pid.value
