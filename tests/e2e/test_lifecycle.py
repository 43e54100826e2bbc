"""Services that are started, shown, stopped, killed and used by several at the same time."""

import asyncio
import json
import os
import signal
from dataclasses import replace

import pytest

from tests.e2e.place import Place, ended, script, seen, until

pytestmark = [pytest.mark.docker, pytest.mark.timeout(180)]

HELLO = """
script: hello
steps:
  - calls: [{name: shell, arguments: {commands: [{command: 'echo hello'}]}}]
  - answer: "{{ find: 'hello' }}"
"""
SLEEP = """
script: sleep
steps:
  - calls: [{name: shell, arguments: {commands: [{command: 'echo begun; sleep 600'}]}}]
  - answer: done
"""
SERVICES = ("container_runtime", "egress_proxy", "reviewer", "orchestrator")


async def test_what_is_not_up_says_so(place):
    shown = await place.workroom("status")
    assert shown.code == 3
    assert "not up" in shown.out and shown.out.count("not serving") == 4
    asked = await place.workroom("status", "--json")
    assert asked.code == 3
    assert json.loads(asked.out) == {
        "process": None,
        "home": str(place.home),
        "services": dict.fromkeys(("runtime", "egress", "reviewer", "orchestrator"), False),
    }
    stopped = await place.workroom("down")
    assert stopped.code == 1 and "not up" in stopped.err
    keys = await place.workroom("keys", "list")
    assert keys.code == 1 and "workroom up" in keys.err


async def test_up_is_shown_kept_and_stopped(place):
    await place.up()
    pid = (await place.status())["process"]
    shown = await place.workroom("status")
    assert shown.code == 0 and shown.out.count(" serving ") == 4

    again = await place.workroom("up", "--no-setup")
    assert again.code == 1 and f"up already, as process {pid}" in again.err
    detached = await place.workroom("up", "--no-setup", "--detach")
    assert detached.code == 0 and f"process {pid}" in detached.out
    ran = await place.workroom("run", "hi", "--script", script(place, HELLO))
    assert ran.code == 0 and "\nhello" in ran.out
    assert (await place.status())["process"] == pid
    assert not await place.containers()

    stopped = await place.workroom("down")
    assert stopped.code == 0 and stopped.out == f"stopped process {pid}\n"
    await place.settled()  # the capture helper sees a moment later that it is alone


async def test_two_runs_at_once_share_the_services_that_they_start(place):
    path = script(place, HELLO)
    runs = await asyncio.gather(
        *(place.workroom("run", "hi", "--script", path, within=120) for _ in range(2))
    )
    for done in runs:
        assert done.code == 0, done.err
        assert "\nhello" in done.out
    await place.settled()


async def test_after_a_killed_up_a_new_one_works_and_nothing_of_the_old_is_left(place):
    await place.up()
    path = script(place, SLEEP)
    running = await place.start("run", "hi", "--script", path)
    await seen(running, "] begun")
    before = await place.containers()
    os.kill((await place.status())["process"], signal.SIGKILL)

    async def children_ended() -> bool:
        return len(place.processes()) == 1  # the run

    await until(children_ended, 30)
    running.kill()
    await ended(running)
    assert not place.processes()
    # The container lives, and dials this one until somebody answers.
    assert all(path.endswith("/host.sock") for path in place.sockets())

    await place.up()
    assert (await place.workroom("status")).code == 0

    async def none() -> bool:
        return not await place.containers()

    assert len(before) == 1
    await until(none, 30)
    ran = await place.workroom("run", "hi", "--script", script(place, HELLO))
    assert ran.code == 0 and "\nhello" in ran.out
    assert not await place.containers()


async def killed(place: Place, module: str) -> None:
    """Kills a service and waits until another process is in its place."""
    pid = place.service_pid(module)
    os.kill(pid, signal.SIGKILL)

    async def another() -> bool:
        return any(
            line.endswith(f" -m {module}") and other != pid
            for other, line in place.processes().items()
        )

    await until(another, 30)


async def test_a_turn_goes_on_through_the_death_of_every_service(up):
    """Each command notes itself; a service is killed while it runs. None runs twice or is lost."""
    steps = "".join(
        f"""
  - calls:
      - name: shell
        arguments:
          commands:
            - command: |
                echo {module} >> log; echo 'begun {module}'; sleep 2; echo 'ended {module}'
"""
        for module in SERVICES
    )
    text = f"""
script: deaths
steps:{steps}
  - calls: [{{name: shell, arguments: {{commands: [{{command: 'sort log'}}]}}}}]
  - answer: |
      {{{{ each: '^(\\w+)$', format: 'ran {{1}}' }}}}
"""
    process = await up.start("run", "hi", "--json", "--script", script(up, text))
    lines = []
    for module in SERVICES:
        lines += await seen(process, f"begun {module}")
        await killed(up, module)
    done = await ended(process, 100)
    assert done.code == 0, done.err
    done = replace(done, out="".join(lines) + done.out)
    assert sorted(done.result["answer"].split("\n")[:-1]) == [f"ran {m}" for m in sorted(SERVICES)]
    commands = [
        event["itemDone"]["item"]["commandExecution"]
        for event in done.lines[:-1]
        if "commandExecution" in event.get("itemDone", {}).get("item", {})
    ]
    for module, command in zip(SERVICES, commands[:-1], strict=True):
        assert command["stdout"] == f"begun {module}\nended {module}\n", command
        assert command["exitCode"] == 0
    assert (await up.workroom("status")).code == 0


@pytest.mark.slow
async def test_a_service_that_dies_again_and_again_takes_all_down_and_says_so(place):
    process = await place.start("up", "--no-setup")

    async def serving() -> bool:
        return all((await place.status())["services"].values())

    await until(serving)
    for _ in range(5):
        await killed(place, "reviewer")
    os.kill(place.service_pid("reviewer"), signal.SIGKILL)
    done = await ended(process)
    assert done.code == 1
    assert "reviewer died 6 times within a minute" in done.err
    await place.settled()
