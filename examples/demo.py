"""The demo: a question about 170,618 flights, answered in a container, without a model or a key.

Runs `workroom run` with the script beside it, and says where the files are that came of it. What
it shows is checked by tests/e2e/test_demo.py, not here.
"""

import argparse
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parent
QUESTION = (
    "Which five destinations lost the most scheduled flights from the third quarter (July to "
    "September) to the fourth (October to December), and which airline cut most at each? Count "
    "rows; biggest drop first, ties by code. Leave a spreadsheet and a chart."
)
DATA = ("flights_2013_h2.csv.gz", "airlines.csv")
RESULTS = {"report.xlsx": "spreadsheet", "drops.png": "chart"}


def main() -> int:
    options = _options()
    out = options.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    for name in RESULTS:
        (out / name).unlink(missing_ok=True)
    command = [sys.executable, "-m", "workroom.cli", "run", QUESTION]
    for name in DATA:
        command += ["--file", str(options.data.resolve() / name)]
    command += ["--script", str(EXAMPLES / "flights.yaml"), "--out", str(out)]
    code = subprocess.run(command, cwd=EXAMPLES.parent, check=False).returncode
    if code:
        print(f"the run ended with {code}", file=sys.stderr)
        return code
    print()
    for name, what in RESULTS.items():
        print(f"{what:<12} {out / name}")
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument(
        "--data", type=Path, default=EXAMPLES, help=f"a folder with {' and '.join(DATA)}"
    )
    parser.add_argument(
        "--out", type=Path, default=EXAMPLES.parent / "demo-out", help="where the files go"
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
