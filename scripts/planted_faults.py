"""Plants faults into the zoo's small models, one at a time, and counts how many `graphopt verify` catches.

    .venv/bin/python scripts/planted_faults.py [--every N]

A fault counts only when it moves an output by at least ten times the limit of a reassociated model; those that do not
are listed. Exits 1 when one is missed.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from rich.console import Console
from rich.table import Table

from graphopt.passes import Numerics
from graphopt.verify import verify
from graphopt.verify.compare import difference
from graphopt.verify.tolerances import LIMITS
from models import ZOO
from tests.rewriting import run
from tests.verify.faults import planted
from tests.verify.test_verify import feeds_of

STRUCTURAL = ("swapped outputs", "renamed output")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--every", type=int, default=3, help="take each N-th weight")
    every = parser.parse_args().every
    table = Table(title="planted faults")
    for column in ("model", "planted", "can show", "caught", "missed"):
        table.add_column(column, justify="left" if column in ("model", "missed") else "right")
    total = caught_total = 0
    hidden: list[str] = []
    for name, build in ZOO.items():
        model = build(small=True)
        feeds = feeds_of(model, seed=99)
        want = run(model, feeds)
        count = shown = caught = 0
        missed = []
        for description, faulty in planted(model, every=every):
            count += 1
            if description not in STRUCTURAL:
                moved = max(difference(w, g)[2] for w, g in zip(want, run(faulty, feeds), strict=True))
                if moved < 10 * LIMITS[Numerics.REASSOCIATED]:
                    hidden.append(f"{name}: {description}")
                    continue
            shown += 1
            if verify(model, faulty).equal:
                missed.append(description)
            else:
                caught += 1
        total += shown
        caught_total += caught
        table.add_row(name, str(count), str(shown), str(caught), "; ".join(missed))
    Console(width=120).print(table)
    print("cannot show:", *(hidden or ["none"]), sep="\n  ")
    print(f"{caught_total} of {total} faults that can show were caught")
    return 1 if caught_total < total else 0


if __name__ == "__main__":
    sys.exit(main())
