"""Owns what a container uses now, as the kernel counts it: control groups, versions 1 and 2.

Found through the container's main process, so no engine is asked.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

_NO_LIMIT = 2**60  # version 1 says "none" by a number near 2**63


@dataclass(frozen=True, slots=True)
class CpuStats:
    """CPU time since the container's start."""

    total: timedelta
    user: timedelta
    system: timedelta
    throttled: timedelta
    """How long its processes were held back by the limit."""


@dataclass(frozen=True, slots=True)
class MemoryStats:
    """Memory of all processes together, in bytes."""

    current: int
    working_set: int
    """Without file contents that the kernel can drop at any time."""
    peak: int
    limit: int | None
    out_of_memory_kills: int


@dataclass(frozen=True, slots=True)
class PidStats:
    """Processes and threads."""

    current: int
    limit: int | None


@dataclass(frozen=True, slots=True)
class IoStats:
    """What was read from and written to disks since the start, counted when a process causes it:
    reads that memory answered do not count, writes that are still to reach the disk do."""

    read_bytes: int
    written_bytes: int


@dataclass(frozen=True, slots=True)
class ResourceStats:
    """Everything that control groups say of a container."""

    cpu: CpuStats
    memory: MemoryStats
    pids: PidStats
    io: IoStats


class ControlGroups:
    """Where this machine's control groups are mounted. `read` blocks for less than a
    millisecond."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._version_1: dict[str, Path] = {}
        self._version_2: Path | None = None
        for line in (proc / "self/mountinfo").read_text().splitlines():
            before, _, after = line.partition(" - ")
            kind, _, options = after.split(" ")[:3]
            target = Path(before.split(" ")[4])
            if kind == "cgroup2":
                self._version_2 = self._version_2 or target
            elif kind == "cgroup":
                for controller in options.split(","):
                    self._version_1.setdefault(controller, target)

    def read(self, pid: int) -> ResourceStats:
        """What the groups of a process use. FileNotFoundError or ProcessLookupError once it is
        gone."""
        found = self._groups(pid)
        if "memory" in found:
            return _version_1(found, self._io(found["pids"]))
        if self._version_2 is None or "" not in found:
            raise FileNotFoundError("no control groups are mounted that count memory")
        return _version_2(found[""], self._io(found[""]))

    def _io(self, group: Path) -> IoStats:
        """Summed over processes; each counts those of its children that it has waited for. The
        groups' own counters stay at zero on some kernels, and count writes for nobody on others."""
        read = written = 0
        for pid in (group / "cgroup.procs").read_text().split():
            try:
                fields = _fields(self._proc / pid / "io")
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                continue  # it is gone, or not ours to look at
            read += fields["read_bytes:"]
            written += fields["write_bytes:"]
        return IoStats(read, written)

    def _groups(self, pid: int) -> dict[str, Path]:
        """Directories by controller; that of version 2 has the name ''."""
        found: dict[str, Path] = {}
        for line in (self._proc / str(pid) / "cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            below = path.lstrip("/")
            if not controllers and self._version_2 is not None:
                found[""] = self._version_2 / below
            for controller in controllers.split(","):
                if controller in self._version_1:
                    found[controller] = self._version_1[controller] / below
        return found


def _version_1(groups: Mapping[str, Path], io: IoStats) -> ResourceStats:
    memory, cpu, times = groups["memory"], groups["cpu"], groups["cpuacct"]
    fields = _fields(memory / "memory.stat")
    current = _number(memory / "memory.usage_in_bytes")
    limit = _number(memory / "memory.limit_in_bytes")
    return ResourceStats(
        CpuStats(
            total=_nanoseconds(_number(times / "cpuacct.usage")),
            user=_nanoseconds(_number(times / "cpuacct.usage_user")),
            system=_nanoseconds(_number(times / "cpuacct.usage_sys")),
            throttled=_nanoseconds(_fields(cpu / "cpu.stat").get("throttled_time", 0)),
        ),
        MemoryStats(
            current=current,
            working_set=max(0, current - fields.get("total_inactive_file", 0)),
            peak=_number(memory / "memory.max_usage_in_bytes"),
            limit=limit if limit < _NO_LIMIT else None,
            out_of_memory_kills=_fields(memory / "memory.oom_control").get("oom_kill", 0),
        ),
        _pids(groups["pids"]),
        io,
    )


def _version_2(group: Path, io: IoStats) -> ResourceStats:
    cpu, memory = _fields(group / "cpu.stat"), _fields(group / "memory.stat")
    current = _number(group / "memory.current")
    peak = group / "memory.peak"
    return ResourceStats(
        CpuStats(
            total=timedelta(microseconds=cpu["usage_usec"]),
            user=timedelta(microseconds=cpu["user_usec"]),
            system=timedelta(microseconds=cpu["system_usec"]),
            throttled=timedelta(microseconds=cpu.get("throttled_usec", 0)),
        ),
        MemoryStats(
            current=current,
            working_set=max(0, current - memory.get("inactive_file", 0)),
            peak=_number(peak) if peak.exists() else current,
            limit=_limit(group / "memory.max"),
            out_of_memory_kills=_fields(group / "memory.events").get("oom_kill", 0),
        ),
        _pids(group),
        io,
    )


def _pids(group: Path) -> PidStats:
    return PidStats(_number(group / "pids.current"), _limit(group / "pids.max"))


def _number(path: Path) -> int:
    return int(path.read_text())


def _limit(path: Path) -> int | None:
    text = path.read_text().strip()
    return None if text == "max" else int(text)


def _fields(path: Path) -> dict[str, int]:
    """A file of lines `name number`."""
    pairs = (line.split() for line in path.read_text().splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2}


def _nanoseconds(count: int) -> timedelta:
    return timedelta(microseconds=count / 1000)
