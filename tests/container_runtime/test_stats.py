"""Both versions of control groups, as the kernel writes them."""

from datetime import timedelta
from pathlib import Path

import pytest

from container_runtime.stats import ControlGroups


def put(root: Path, **files: str) -> None:
    for name, content in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)


def proc(tmp_path: Path, mounts: str, groups: str) -> Path:
    put(tmp_path, proc__self__mountinfo=mounts, proc__42__cgroup=groups)
    return tmp_path / "proc"


def write(folder: Path, name: str, content: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(content)


def processes(tmp_path: Path, group: Path, transfers: dict[str, tuple[int, int]]) -> None:
    """Processes of a group and what each has read and written, and one that is gone."""
    write(group, "cgroup.procs", "".join(f"{pid}\n" for pid in [*transfers, "99"]))
    for pid, (read, written) in transfers.items():
        content = f"rchar: 1\nwchar: 1\nread_bytes: {read}\nwrite_bytes: {written}\n"
        write(tmp_path / "proc" / pid, "io", content)


def test_version_2_is_read(tmp_path):
    mount = tmp_path / "cgroup"
    groups = ControlGroups(
        proc(
            tmp_path,
            f"29 23 0:26 / {mount} rw,nosuid - cgroup2 cgroup2 rw\n",
            "0::/system.slice/docker-1.scope\n",
        )
    )
    group = mount / "system.slice/docker-1.scope"
    write(group, "cpu.stat", "usage_usec 3000000\nuser_usec 2000000\nsystem_usec 1000000\n")
    write(group, "memory.current", "5000\n")
    write(group, "memory.stat", "anon 3000\ninactive_file 1500\n")
    write(group, "memory.max", "max\n")
    write(group, "memory.events", "low 0\noom 1\noom_kill 2\n")
    write(group, "pids.current", "7\n")
    write(group, "pids.max", "512\n")
    processes(tmp_path, group, {"42": (10, 20), "43": (1, 1)})
    found = groups.read(42)
    assert (found.cpu.total, found.cpu.user) == (timedelta(seconds=3), timedelta(seconds=2))
    assert (found.memory.current, found.memory.working_set, found.memory.peak) == (
        5000,
        3500,
        5000,
    )
    assert (found.memory.limit, found.memory.out_of_memory_kills) == (None, 2)
    assert (found.pids.current, found.pids.limit) == (7, 512)
    assert (found.io.read_bytes, found.io.written_bytes) == (11, 21)


def test_version_1_beside_an_empty_version_2_is_read(tmp_path):
    top = tmp_path / "cgroup"
    mounts = "".join(
        f"30 29 0:27 / {top}/{name} rw - cgroup cgroup rw,{name}\n"
        for name in ("memory", "cpu", "cpuacct", "pids")
    )
    mounts += f"31 29 0:28 / {top}/unified rw - cgroup2 cgroup2 rw\n"
    lines = "".join(
        f"{number}:{name}:/docker/abc\n"
        for number, name in enumerate(("memory", "cpu", "cpuacct", "pids"), 1)
    )
    groups = ControlGroups(proc(tmp_path, mounts, lines + "0::/docker/abc\n"))
    write(top / "memory/docker/abc", "memory.usage_in_bytes", "9000\n")
    write(top / "memory/docker/abc", "memory.max_usage_in_bytes", "9500\n")
    write(top / "memory/docker/abc", "memory.limit_in_bytes", "1073741824\n")
    write(top / "memory/docker/abc", "memory.stat", "cache 1\ntotal_inactive_file 4000\n")
    write(top / "memory/docker/abc", "memory.oom_control", "under_oom 0\noom_kill 3\n")
    write(top / "cpu/docker/abc", "cpu.stat", "nr_periods 3\nthrottled_time 5000000000\n")
    write(top / "cpuacct/docker/abc", "cpuacct.usage", "7000000000\n")
    write(top / "cpuacct/docker/abc", "cpuacct.usage_user", "6000000000\n")
    write(top / "cpuacct/docker/abc", "cpuacct.usage_sys", "1000000000\n")
    write(top / "pids/docker/abc", "pids.current", "4\n")
    write(top / "pids/docker/abc", "pids.max", "max\n")
    processes(tmp_path, top / "pids/docker/abc", {"42": (5, 16)})
    found = groups.read(42)
    assert found.cpu.total == timedelta(seconds=7)
    assert found.cpu.throttled == timedelta(seconds=5)
    assert (found.memory.working_set, found.memory.peak, found.memory.limit) == (
        5000,
        9500,
        2**30,
    )
    assert found.memory.out_of_memory_kills == 3
    assert (found.pids.current, found.pids.limit) == (4, None)
    assert (found.io.read_bytes, found.io.written_bytes) == (5, 16)


def test_a_process_that_is_gone_has_none(tmp_path):
    groups = ControlGroups(proc(tmp_path, "", ""))
    with pytest.raises(FileNotFoundError):
        groups.read(43)
