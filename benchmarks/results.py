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


def write(results: Iterable[Result]) -> None:
    """Writes them for `benchmarks/out/latest.json` and prints them."""
    found = [asdict(result) | {"ratio": result.ratio} for result in results]
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text(json.dumps(found, indent=1) + "\n")
    for each in found:
        beside = f"  {each['versus']} {each['versus_value']:.3g}" if each["versus"] else ""
        ratio = f"  ratio {each['ratio']:.3g}" if each["ratio"] else ""
        print(f"{each['name']:28} {each['value']:10.3f} {each['unit']}{beside}{ratio}")
