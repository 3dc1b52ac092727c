"""What `graphopt verify` catches, and that it does not cry wolf.

    .venv/bin/python scripts/planted_faults.py [--every N] [--floor 200]    # faults in the zoo's small models
    .venv/bin/python scripts/planted_faults.py --seeds 20                   # false alarms over the zoo

A fault counts when it moves an output by at least ten times the limit of a reassociated model. How far it moves is
computed in float64 by ONNX's reference evaluator, on inputs of its own (normal, and padded where there is a mask). The
faults that cannot show are listed. Exits 1 when one that can is missed, when fewer than the floor can, or when a
rewritten model raises an alarm.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from rich.console import Console
from rich.table import Table

import graphopt
from graphopt.checking.tolerances import LIMITS
from graphopt.checking.verify import verify
from graphopt.metadata import Numerics
from models import ZOO
from tests.checking.faults import STRUCTURAL, planted
from tests.checking.reference64 import moved, probes, run64


def faults(every: int, floor: int, only: str) -> int:
    table = Table(title="planted faults")
    for column in ("model", "planted", "can show", "caught", "missed"):
        table.add_column(column, justify="left" if column in ("model", "missed") else "right")
    total = caught_total = models = 0
    hidden: list[str] = []
    for name, build in ZOO.items():
        if only not in name:
            continue
        model = build(small=True, batch=2)
        feeds = probes(model)
        wanted = [run64(model, inputs) for inputs in feeds]
        count = shown = caught = 0
        missed = []
        for description, faulty in planted(model, every=every):
            count += 1
            far = 0.0 if description in STRUCTURAL else moved(wanted, faulty, feeds)
            if description not in STRUCTURAL and far < 10 * LIMITS[Numerics.REASSOCIATED]:
                hidden.append(f"{name}: {description} ({far:.1e})")
                continue
            shown += 1
            if verify(model, faulty).equal:
                missed.append(f"{description} ({far:.1e})")
            else:
                caught += 1
        total += shown
        caught_total += caught
        models += shown > 0
        table.add_row(name, str(count), str(shown), str(caught), "; ".join(missed))
    Console(width=120).print(table)
    print("cannot show:", *(hidden or ["none"]), sep="\n  ")
    print(f"{caught_total} of {total} faults that can show were caught, over {models} models")
    return 1 if caught_total < total or total < floor else 0


def false_alarms(seeds: int, only: str) -> int:
    alarms = runs = 0
    for name, build in ZOO.items():
        if only not in name:
            continue
        for seed in range(seeds):
            model = build(small=True, dynamic=seed % 2 == 1, seed=seed)
            after, _ = graphopt.optimize(model, target="cpu", all_sites=True)
            report = verify(model, after, seed=seed)
            runs += 1
            if not report.equal:
                alarms += 1
                print(f"{name}, seed {seed}: {report.summary}")
    print(f"{alarms} false alarms in {runs} runs: {seeds} seeds")
    return 1 if alarms else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--every", type=int, default=3, help="take each N-th weight")
    parser.add_argument("--floor", type=int, default=200, help="how many faults must be able to show")
    parser.add_argument("--only", default="", help="models whose name contains this")
    parser.add_argument("--seeds", type=int, default=0, help="look for false alarms with this many seeds instead")
    arguments = parser.parse_args()
    if arguments.seeds:
        return false_alarms(arguments.seeds, arguments.only)
    return faults(arguments.every, arguments.floor, arguments.only)


if __name__ == "__main__":
    sys.exit(main())
