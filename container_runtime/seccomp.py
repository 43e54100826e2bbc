"""Owns which system calls may be made inside a container: an allow-list, as the engine reads it.

A profile of ours replaces the engine's, which cannot be read back, so this one stands alone.
Whatever is not named fails with EPERM, except what programs probe for and must believe absent
(ENOSYS). Calls under another ABI than the machine's own (i386 and x32 on x86_64, 32-bit ARM on
aarch64) are not in the profile's architectures, for which the kernel's answer is to kill.
"""

import errno
from typing import Any

Rule = dict[str, Any]

_ABI = {"x86_64": "SCMP_ARCH_X86_64", "aarch64": "SCMP_ARCH_AARCH64"}

AF_UNIX, AF_INET, AF_INET6, AF_NETLINK = 1, 2, 10, 16
NETLINK_ROUTE = 0

CLONE_NEW_ANYTHING = 0x7E02_0000  # every namespace but time's, whose bit is clone's exit signal
CLONE_NEW_ANYTHING_UNSHARED = CLONE_NEW_ANYTHING | 0x80

PERSONALITIES = (0x0, 0x8, 0x20000, 0x20008, 0xFFFFFFFF)
"""Linux, Linux 32-bit, and uname(2) as of 2.6 for both; the last asks for the current one."""

FILES = """
access chdir chmod chown close close_range copy_file_range creat dup dup2 dup3 faccessat faccessat2
fadvise64 fallocate fchdir fchmod fchmodat fchmodat2 fchown fchownat fcntl fdatasync fgetxattr
flistxattr flock fremovexattr fsetxattr fstat fstatfs fsync ftruncate futimesat getcwd getdents
getdents64 getxattr getxattrat inotify_add_watch inotify_init inotify_init1 inotify_rm_watch ioctl
lchown lgetxattr link linkat listxattr listxattrat llistxattr lremovexattr lseek lsetxattr lstat
mkdir mkdirat mknod mknodat newfstatat open openat openat2 pread64 preadv preadv2 pwrite64 pwritev
pwritev2 read readahead readlink readlinkat readv removexattr removexattrat rename renameat
renameat2 rmdir sendfile setxattr setxattrat splice stat statfs statx symlink symlinkat sync
sync_file_range syncfs tee truncate umask unlink unlinkat utime utimensat utimes vmsplice write
writev
"""

MEMORY = """
brk cachestat get_mempolicy madvise map_shadow_stack membarrier memfd_create mincore mlock mlock2
mlockall mmap mprotect mremap mseal msync munlock munlockall munmap pkey_alloc pkey_free
pkey_mprotect process_madvise process_mrelease remap_file_pages
"""

# Tracing reaches only what the same user may trace: the supervisor is not dumpable, and nobody
# here has SYS_PTRACE. Debuggers and leak checkers need it.
PROCESSES = """
arch_prctl capget capset execve execveat exit exit_group fork get_robust_list get_thread_area
getcpu getegid geteuid getgid getgroups getpgid getpgrp getpid getppid getpriority getresgid
getresuid getrlimit getrusage getsid gettid getuid ioprio_get ioprio_set kcmp kill
landlock_add_rule landlock_create_ruleset landlock_restrict_self pidfd_open pidfd_send_signal
prctl prlimit64 process_vm_readv process_vm_writev ptrace restart_syscall rseq
sched_get_priority_max sched_get_priority_min sched_getaffinity sched_getattr sched_getparam
sched_getscheduler sched_rr_get_interval sched_setaffinity sched_setattr sched_setparam
sched_setscheduler sched_yield seccomp set_robust_list set_thread_area
set_tid_address setfsgid setfsuid setgid setgroups setpgid setpriority setregid setresgid setresuid
setreuid setrlimit setsid setuid sysinfo tgkill times tkill uname vfork wait4 waitid
"""

SIGNALS_AND_TIME = """
alarm clock_adjtime clock_getres clock_gettime clock_nanosleep adjtimex getitimer gettimeofday
nanosleep pause rt_sigaction rt_sigpending rt_sigprocmask rt_sigqueueinfo rt_sigreturn
rt_sigsuspend rt_sigtimedwait rt_tgsigqueueinfo setitimer sigaltstack signalfd signalfd4 time
timer_create timer_delete timer_getoverrun timer_gettime timer_settime timerfd_create
timerfd_gettime timerfd_settime
"""

WAITING_AND_TALKING = """
accept accept4 bind connect epoll_create epoll_create1 epoll_ctl epoll_ctl_old epoll_pwait
epoll_pwait2 epoll_wait epoll_wait_old eventfd eventfd2 futex futex_requeue futex_wait futex_waitv
futex_wake getpeername getrandom getsockname getsockopt io_cancel io_destroy io_getevents
io_pgetevents io_setup io_submit listen mq_getsetattr mq_notify mq_open mq_timedreceive
mq_timedsend mq_unlink msgctl msgget msgrcv msgsnd pipe pipe2 poll ppoll pselect6 recvfrom recvmmsg
recvmsg select semctl semget semop semtimedop sendmmsg sendmsg sendto setsockopt shmat shmctl shmdt
shmget shutdown
"""

ABSENT = "clone3 io_uring_setup io_uring_enter io_uring_register"
"""Named so that they are ENOSYS: libraries then fall back (clone3's flags cannot be looked at)."""


def profile(machine: str) -> Rule:
    """The profile for a machine (`x86_64`, `aarch64`). ValueError for any other."""
    if machine not in _ABI:
        raise ValueError(
            f"no system call profile for {machine}; there is one for {', '.join(_ABI)}"
        )
    return {
        "defaultAction": "SCMP_ACT_ERRNO",
        "defaultErrnoRet": errno.EPERM,
        "architectures": [_ABI[machine]],
        "syscalls": [
            _allow(_allowed_names()),
            *(_allow(["personality"], _equals(0, value)) for value in PERSONALITIES),
            _allow(["clone"], _without_bits(0, CLONE_NEW_ANYTHING)),
            _allow(["unshare"], _without_bits(0, CLONE_NEW_ANYTHING_UNSHARED)),
            *(_allow(["socket"], _equals(0, family)) for family in (AF_UNIX, AF_INET, AF_INET6)),
            _allow(["socket"], _equals(0, AF_NETLINK), _equals(2, NETLINK_ROUTE)),
            _allow(["socketpair"], _equals(0, AF_UNIX)),
            {"names": ABSENT.split(), "action": "SCMP_ACT_ERRNO", "errnoRet": errno.ENOSYS},
        ],
    }


def _allowed_names() -> list[str]:
    groups = (FILES, MEMORY, PROCESSES, SIGNALS_AND_TIME, WAITING_AND_TALKING)
    return sorted(name for group in groups for name in group.split())


def _allow(names: list[str], *conditions: Rule) -> Rule:
    return {"names": names, "action": "SCMP_ACT_ALLOW", "args": list(conditions)}


def _equals(argument: int, value: int) -> Rule:
    return {"index": argument, "value": value, "op": "SCMP_CMP_EQ"}


def _without_bits(argument: int, bits: int) -> Rule:
    return {"index": argument, "value": bits, "valueTwo": 0, "op": "SCMP_CMP_MASKED_EQ"}
