"""What root inside a container must not be able to do, tried with raw system calls."""

import json
import platform
from pathlib import Path
from typing import Any

import pytest

from workroom.runtime.v1 import executions_pb2 as epb

pytestmark = pytest.mark.docker

ATTEMPTS = Path(__file__).with_name("attempts.py").read_text()


async def attempts(node, container: str, *, root: bool) -> dict[str, Any]:
    """What each attempt of `attempts.py` came to."""
    await node.calls.write(container, "/tmp/attempts.py", ATTEMPTS.encode())
    user = epb.Command.USER_ROOT if root else epb.Command.USER_DEFAULT
    done = await node.calls.run(container, "python3 /tmp/attempts.py", user=user)
    assert done.execution.outcome.exited.code == 0, done.stderr.head.decode()
    return json.loads(done.stdout.head)


@pytest.mark.parametrize("root", [False, True])
async def test_no_system_call_leads_out(node, container, root):
    found = await attempts(node, container, root=root)
    assert found["families"] == ["1", "2", "10", "16"]
    assert found["pair_families"] == ["1"]
    refused = {
        "netlink_netfilter": "EPERM",
        "clone3": "ENOSYS",
        "io_uring": "ENOSYS",
        "unshare_user": "EPERM",
        "unshare_net": "EPERM",
        "clone_user": "EPERM",
        "setns": "EPERM",
        "mount": "EPERM",
        "fsopen": "EPERM",
        "keyctl": "EPERM",
        "bpf": "EPERM",
        "perf_event_open": "EPERM",
        "userfaultfd": "EPERM",
        "open_by_handle_at": "EPERM",
        "trace_supervisor": "EPERM",
        "kexec": "EPERM",
        "module": "EPERM",
        "quotactl": "EPERM",
    }
    assert {name: found[name] for name in refused} == refused


async def test_another_abi_is_killed(node, container):
    if platform.machine() != "x86_64":
        pytest.fail("this machine has no second ABI to try")
    found = await attempts(node, container, root=True)
    assert found["i386_socketcall"] == "killed by 31"
    assert found["x32_socket"] == "killed by 31"


async def test_root_has_six_capabilities_and_gets_no_more(node, container):
    done = await node.calls.run(
        container,
        "grep -E 'Cap(Prm|Eff|Bnd|Inh|Amb)|NoNewPrivs|Seccomp:' /proc/self/status",
        user=epb.Command.USER_ROOT,
    )
    told = dict(line.split(":\t") for line in done.stdout.head.decode().splitlines())
    six = f"{(1 << 0) | (1 << 1) | (1 << 3) | (1 << 5) | (1 << 6) | (1 << 7):016x}"
    assert told["CapPrm"] == told["CapEff"] == told["CapBnd"] == six
    assert (told["NoNewPrivs"], told["Seccomp"]) == ("1", "2")
    done = await node.calls.run(container, "grep CapEff /proc/self/status")
    assert done.stdout.head.split()[1] == b"0" * 16


async def test_nothing_of_the_host_can_be_reached(node, container):
    script = """
        ls /var/run/docker.sock /run/docker.sock /run/containerd 2>/dev/null
        echo x > /proc/sys/kernel/core_pattern && echo core_pattern
        echo x > /proc/sysrq-trigger && echo sysrq
        head -c1 /proc/kcore 2>/dev/null | grep -q . && echo kcore
        test -s /proc/timer_list && echo timer_list
        ls /sys/firmware 2>/dev/null
        touch /sys/x 2>/dev/null && echo sys
        touch /run/workroom/link/x 2>/dev/null && echo link
        rm /run/workroom/link/host.sock 2>/dev/null && echo socket
        touch /run/workroom/python/x 2>/dev/null && echo python
        ls /dev | grep -E '^(sd|vd|nvme|mem|kmsg|loop|fuse|kvm)'
        mknod /tmp/disk b 8 0 2>/dev/null && echo mknod
        ls -d /run/workroom/link/*
        true
    """
    done = await node.calls.run(container, script, user=epb.Command.USER_ROOT)
    assert done.stdout.head == b"/run/workroom/link/host.sock\n"


async def test_root_cannot_end_or_look_into_the_supervisor(node, container):
    script = """
        kill -KILL 1; kill -STOP 1; kill -SEGV 1; kill -TERM 1
        cat /proc/1/environ >/dev/null 2>&1 && echo environ
        head -c1 /proc/1/mem 2>/dev/null | grep -q . && echo mem
        readlink /proc/1/fd/* /proc/1/exe /proc/1/cwd
        true
    """
    done = await node.calls.run(container, script, user=epb.Command.USER_ROOT)
    assert done.stdout.head == b""
    assert (await node.calls.run(container, "echo alive")).stdout.head == b"alive\n"


async def test_an_impostor_on_the_link_is_not_heard(node, container):
    script = """
import socket
s = socket.socket(socket.AF_UNIX)
s.connect("/run/workroom/link/host.sock")
s.settimeout(2)
try:
    s.sendall(b"\\0" * 64)
    print(s.recv(10) or "unheard")
except (TimeoutError, ConnectionError):
    print("unheard")
"""
    await node.calls.write(container, "/tmp/impostor.py", script.encode())
    done = await node.calls.run(container, "python3 /tmp/impostor.py", user=epb.Command.USER_ROOT)
    assert done.stdout.head == b"unheard\n"
    assert (await node.calls.run(container, "echo fine")).stdout.head == b"fine\n"


async def test_loopback_has_both_families_and_the_host_name_resolves(node, container):
    script = """
import socket
for host, family in (("127.0.0.1", socket.AF_INET), ("::1", socket.AF_INET6)):
    with socket.create_server((host, 0), family=family) as server:
        socket.create_connection(server.getsockname()[:2]).close()
print(socket.gethostbyname(socket.gethostname()))
try:
    socket.create_connection(("192.0.2.1", 80), timeout=2)
except OSError as error:
    print(error.errno)
"""
    await node.calls.write(container, "/tmp/net.py", script.encode())
    done = await node.calls.run(container, "python3 /tmp/net.py")
    assert done.stdout.head == b"127.0.0.1\n101\n", done.stderr.head


async def test_memory_and_processes_are_bounded(node, container):
    hog = "python3 -c 'x = bytearray(3 * 2**30); print(len(x))'"
    done = await node.calls.run(container, hog)
    assert done.execution.outcome.WhichOneof("kind") == "out_of_memory"
    bomb = "for i in $(seq 2000); do sleep 5 & done 2>/dev/null; jobs -p | wc -l"
    done = await node.calls.run(container, bomb)
    assert (await node.calls.run(container, "echo alive")).stdout.head == b"alive\n"


async def test_an_image_gives_its_environment_but_not_its_entrypoint(node, container):
    done = await node.calls.run(container, "echo $MPLBACKEND; tr '\\0' ' ' </proc/1/cmdline")
    assert done.stdout.head.startswith(b"Agg\n")
    assert b"agent.main" in done.stdout.head
