import json

import pytest

from container_runtime.seccomp import profile


def rules(machine: str, name: str) -> list[dict[str, object]]:
    return [each for each in profile(machine)["syscalls"] if name in each["names"]]


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_a_profile_is_for_its_own_abi_and_refuses_what_it_does_not_name(machine):
    found = json.loads(json.dumps(profile(machine)))
    assert len(found["architectures"]) == 1
    assert (found["defaultAction"], found["defaultErrnoRet"]) == ("SCMP_ACT_ERRNO", 1)
    for name in ("mount", "keyctl", "bpf", "setns", "init_module", "pivot_root", "userfaultfd"):
        assert rules(machine, name) == []


def test_what_is_allowed_on_condition_has_no_rule_without_one():
    for name in ("socket", "socketpair", "clone", "unshare", "personality"):
        assert all(rule["args"] for rule in rules("x86_64", name))


def test_what_programs_probe_for_is_absent():
    for name in ("clone3", "io_uring_setup"):
        (rule,) = rules("x86_64", name)
        assert (rule["action"], rule["errnoRet"]) == ("SCMP_ACT_ERRNO", 38)


def test_an_unknown_machine_is_refused():
    with pytest.raises(ValueError):
        profile("pdp11")
