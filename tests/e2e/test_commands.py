"""Commands through all four services: side by side, live, and with bounded output."""

import json
import re
import time
from typing import Any

import pytest

from tests.e2e.place import Place, ended, script, seen

pytestmark = [pytest.mark.docker, pytest.mark.timeout(120)]

TOGETHER = """
script: together
steps:
  - calls:
      - name: shell
        arguments:
          commands:
            - command: sleep 2; echo slow
            - command: echo quick
  - answer: done
"""
LONG = """
script: long
steps:
  - calls:
      - name: shell
        arguments:
          commands:
            - {command: 'seq 1 1000000', max_output_chars: 1000}
            - {command: 'seq 1 1000000 >&2', max_output_chars: 1000}
            - {command: 'yes ä | head -c 300000', max_output_chars: 1001}
  - answer: done
"""
ENDLESS = """
script: endless
steps:
  - calls:
      - name: shell
        arguments:
          commands:
            - {command: 'yes', timeout_ms: 10000}
  - answer: done
"""
SEQ_CHARS = sum(len(str(n)) + 1 for n in range(1, 1_000_001))
MARKER = re.compile(r"\n\[\.\.\. (\d+) characters left out \.\.\.\]\n")


def commands(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        line["itemDone"]["item"]["commandExecution"]
        for line in lines
        if "commandExecution" in line.get("itemDone", {}).get("item", {})
    ]


async def test_what_runs_together_is_seen_together_and_takes_no_longer(up):
    process = await up.start("run", "hi", "--json", "--script", script(up, TOGETHER))
    lines = await seen(process, '"delta": "quick')
    quick_seen = time.monotonic()
    lines += await seen(process, '"delta": "slow')
    assert time.monotonic() - quick_seen > 1, "the quick one's output waited for the slow one"
    done = await ended(process)
    assert done.code == 0
    first, second = (
        float(command["duration"].removesuffix("s"))
        for command in commands([json.loads(line) for line in lines] + done.lines)
    )
    assert min(first, second) < 1.5
    assert 2 <= max(first, second) < 3.5


async def test_long_output_is_bounded_and_says_how_much_is_missing(up):
    done = await up.workroom("run", "hi", "--json", "--script", script(up, LONG))
    assert done.code == 0, done.err
    results = {command["command"]: command for command in commands(done.lines)}
    whole = "".join(f"{n}\n" for n in range(1, 1_000_001))
    assert len(whole) == SEQ_CHARS
    check_bounded(results["seq 1 1000000"]["stdout"], whole, 1000)
    check_bounded(results["seq 1 1000000 >&2"]["stderr"], whole, 1000)
    check_bounded(results["yes ä | head -c 300000"]["stdout"], "ä\n" * 100_000, 1001)


def check_bounded(text: str, whole: str, limit: int) -> None:
    """Both ends are kept, and the marker has the right count."""
    (marker,) = MARKER.finditer(text)
    head, tail = text[: marker.start()], text[marker.end() :]
    assert head and tail
    assert whole.startswith(head) and whole.endswith(tail)
    assert limit // 4 <= len(head) + len(tail) <= limit
    assert int(marker[1]) == len(whole) - len(head) - len(tail)


@pytest.mark.slow
async def test_endless_output_does_not_grow_any_service(up):
    await up.workroom("run", "hi", "--script", script(up, TOGETHER))
    before = memory(up)
    done = await up.workroom("run", "hi", "--json", "--script", script(up, ENDLESS))
    after = memory(up)
    assert done.code == 0, done.err
    (command,) = commands(done.lines)
    assert "timed out" in command["ended"]
    assert len(command["stdout"]) < 11_000
    grown = {name: after[name] - before[name] for name in before}
    assert all(kibibytes < 40 * 1024 for kibibytes in grown.values()), grown


def memory(place: Place) -> dict[str, int]:
    """Resident memory of each service, in KiB."""
    found = {}
    for module in ("container_runtime", "egress_proxy", "reviewer", "orchestrator"):
        with open(f"/proc/{place.service_pid(module)}/status") as status:
            line = next(line for line in status if line.startswith("VmRSS:"))
        found[module] = int(line.split()[1])
    return found
