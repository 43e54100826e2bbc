"""Runs every benchmark module and writes `benchmarks/out/latest.json`.

`python -m benchmarks [MODULE…]`. A module has `def run() -> list[Result]`.
"""

import importlib
import pkgutil
import sys

import benchmarks
from benchmarks.results import Result, write

_NOT_MEASURING = {"__main__", "results"}


def main(wanted: list[str]) -> None:
    """Measures what is named, or everything."""
    names = [module.name for module in pkgutil.iter_modules(benchmarks.__path__)]
    results: list[Result] = []
    for name in sorted(set(wanted or names) - _NOT_MEASURING):
        module = importlib.import_module(f"benchmarks.{name}")
        if hasattr(module, "run"):
            results += module.run()
    write(results)


if __name__ == "__main__":
    main(sys.argv[1:])
