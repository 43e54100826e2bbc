"""Runs every benchmark module and writes `benchmarks/out/latest.json`.

`python -m benchmarks [MODULE…]`. A module that measures has `def run() -> list[Result]`; each runs
in a process of its own, one after another.
"""

import multiprocessing
import pkgutil
import sys
from concurrent.futures import ProcessPoolExecutor

import benchmarks
from benchmarks.results import Result, measured, write


def main(wanted: list[str]) -> None:
    """Measures what is named, or everything."""
    names = {module.name for module in pkgutil.iter_modules(benchmarks.__path__)} - {"__main__"}
    results: list[Result] = []
    fresh = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=fresh, max_tasks_per_child=1) as processes:
        for found in processes.map(measured, sorted(names.intersection(wanted or names))):
            results += found
    write(results)


if __name__ == "__main__":
    main(sys.argv[1:])
