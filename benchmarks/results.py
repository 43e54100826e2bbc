"""Owns the form of a measurement and where all of them are written."""

import importlib
import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

OUT = Path(__file__).parent / "out" / "latest.json"


@dataclass(frozen=True, slots=True)
class Result:
    """One measurement, and beside it what the same run measured of its yardstick."""

    name: str
    value: float
    unit: str
    versus: str | None = None
    versus_value: float | None = None
    p99: float | None = None
    samples: int | None = None
    versus_p99: float | None = None
    versus_samples: int | None = None

    @property
    def ratio(self) -> float | None:
        """How many times the yardstick's value this one is."""
        return self.value / self.versus_value if self.versus_value else None


def measured(name: str) -> list[Result]:
    """What the module called `name` measures; nothing, if it does not."""
    module = importlib.import_module(f"benchmarks.{name}")
    found: list[Result] = module.run() if hasattr(module, "run") else []
    return found


def median_ms(spans: Sequence[float]) -> float:
    """The median of seconds, in milliseconds."""
    return statistics.median(spans) * 1000


def p99_ms(spans: Sequence[float]) -> float:
    """The value that 99 of 100 do not exceed, in milliseconds: the largest of fewer than 100."""
    return sorted(spans)[min(len(spans) - 1, len(spans) * 99 // 100)] * 1000


def beside(name: str, ours: Sequence[float], versus: str, theirs: Sequence[float]) -> Result:
    """Medians of seconds of both in milliseconds, with their tails and counts."""
    return Result(
        name,
        median_ms(ours),
        "ms",
        versus,
        median_ms(theirs),
        p99=p99_ms(ours),
        samples=len(ours),
        versus_p99=p99_ms(theirs),
        versus_samples=len(theirs),
    )


def write(results: Iterable[Result]) -> None:
    """Writes them for `benchmarks/out/latest.json` and prints them."""
    found = [asdict(result) | {"ratio": result.ratio} for result in results]
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text(json.dumps(found, indent=1) + "\n")
    for each in found:
        yardstick = f"  {each['versus']} {each['versus_value']:.3g}" if each["versus"] else ""
        ratio = f"  ratio {each['ratio']:.3g}" if each["ratio"] else ""
        print(f"{each['name']:28} {each['value']:10.3f} {each['unit']}{yardstick}{ratio}")
