"""Draws many nodes of each contrib operator, and compares definition, reference and ONNX Runtime's kernel.

python -m tests.contrib.walk NODES [OPERATOR...]
"""

from __future__ import annotations

import sys
from collections import Counter

from graphopt.contrib import CONTRIB
from tests.contrib.nodes import RUNTIME, judge
from tests.contrib.test_definitions import OPSETS


def main() -> int:
    nodes, names = int(sys.argv[1]), sys.argv[2:]
    faults = 0
    for op in CONTRIB.values():
        if names and op.name not in names:
            continue
        seen: Counter[str] = Counter()
        for seed in range(nodes):
            verdict = judge(op, seed, OPSETS[seed % len(OPSETS)])
            held = "kernel and reference" if verdict.kernel else "reference"
            seen["refused" if verdict.refused else "differ" if verdict.fault else held] += 1
            if verdict.fault:
                print(verdict.fault)
        faults += seen["differ"]
        print(f"{op.name}: {', '.join(f'{n} {what}' for what, n in sorted(seen.items()))}", flush=True)
    print(f"onnxruntime {'.'.join(map(str, RUNTIME))}: {faults} nodes differ")
    return min(faults, 1)


if __name__ == "__main__":
    sys.exit(main())
