"""Optimizes fresh exports with external data in their folder, moves the results alone, and compares them.

venv-torch/bin/python scripts/export.py FOLDER --exporters dynamo20 --external-data
.venv/bin/python scripts/moved_exports.py FOLDER
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

import graphopt


def check(file: Path) -> bool:
    """Whether the optimized file is complete with its data file, and equal without those of the input."""
    with tempfile.TemporaryDirectory() as temporary:
        fresh, alone = Path(temporary) / "fresh", Path(temporary) / "alone"
        fresh.mkdir()
        alone.mkdir()
        for part in file.parent.glob(f"{file.name}*"):
            shutil.copy(part, fresh)
        _, report = graphopt.optimize(fresh / file.name, fresh / "fast.onnx", target="cpu")
        written = sorted(path.name for path in fresh.glob("fast.onnx*"))
        for name in written:
            (fresh / name).rename(alone / name)
        shutil.rmtree(fresh)
        feeds = {key[2:]: x for key, x in np.load(file.with_suffix(".npz")).items() if key.startswith("0:")}
        found = graphopt.verify(file, alone / "fast.onnx", effort="quick", inputs=feeds)
    done = sum(remark.applied for remark in report.remarks)
    print(f"{file.stem}: {found.verdict.value}, {done} rewrites, {', '.join(written)}", flush=True)
    return found.equal and written in (["fast.onnx", "fast.onnx.data"], ["fast.onnx"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    files = sorted(parser.parse_args().folder.glob("*.onnx"))
    if bad := [file.stem for file in files if not check(file)]:
        raise SystemExit(f"not equal, or other files than OUT and OUT.data: {', '.join(bad)}")


if __name__ == "__main__":
    main()
