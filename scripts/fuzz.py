"""Optimizes random graphs, checks each (tests/fuzz/check.py), and prints the seeds that fail.

.venv/bin/python scripts/fuzz.py --graphs 10000 --first 0
"""

from __future__ import annotations

import argparse
import sys
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.fuzz.check import check


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graphs", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    arguments = parser.parse_args()
    ran = refused = 0
    failures: list[int] = []
    for seed in range(arguments.first, arguments.first + arguments.graphs):
        if (done := seed - arguments.first) and done % 1000 == 0:
            print(f"{done} graphs, {len(failures)} failures", flush=True)
        try:
            if check(seed):
                ran += 1
            else:
                refused += 1
        except Exception as error:  # every failure is reported, with its seed
            failures.append(seed)
            print(f"seed {seed}: {type(error).__name__}: {str(error).partition(chr(10))[0]}", flush=True)
            if not isinstance(error, AssertionError):
                traceback.print_exc()
    print(f"{ran} graphs ran, {refused} refused by the runtime, {len(failures)} failures: {failures[:20]}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
