"""Where the provider lets nodes of whole models run, and how many copies lie between: docs/measurements/placement.md.

Usage:

    python scripts/provider_placement.py [--out TABLE] [MODEL_OR_FOLDER ...]

Without arguments: the zoo with symbolic batch and length, and the trained models of models/pypi.py, each as it is and
as `optimize` leaves it; no model runs. A folder stands for the .onnx files in it (scripts/export_models.py fills one).
Where such a file has its inputs beside it (NAME.npz with "0:input", "1:input": two sets), it is also verified: what
`optimize` makes of it against the file, and both on the provider against the CPU. Exit code 1 when one is wrong. The
device is the CPU with the GPU kernels compiled for it, or with GRAPHOPT_TEST_ON_GPU=1 this machine's GPU.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import graphopt
from graphopt.runtime.sessions import library_path
from models import ZOO
from models.pypi import TRAINED, fetch
from tests.provider.test_regions import counts, since
from tests.provider.worker import PROVIDER, kernels_on_the_cpu, new_session

TARGET = "rocm"


@dataclass(frozen=True)
class Row:
    """One session.

    Attributes:
        there: nodes on the provider, those included that its regions compute with their plans.
        regions: what they are joined to.
        elsewhere: kind of node -> how many the CPU has, bodies of If, Loop and Scan included.
        to_host, to_device: copies that the runtime put between.
    """

    there: int
    regions: int
    elsewhere: Counter[str]
    to_host: int
    to_device: int

    def text(self, name: str) -> str:
        left = ", ".join(f"{op} {n}" if n > 1 else op for op, n in self.elsewhere.most_common())
        return (
            f"| {name} | {self.there} | {self.regions} | {self.elsewhere.total()} "
            f"| {self.to_host} | {self.to_device} | {left} |"
        )


def placed(model: bytes) -> Row:
    """A session on the provider, with the runtime's own optimizers, that is not run."""
    before = counts()
    session = new_session(model, assignment=True, optimize=True)
    given: dict[bool, Counter[str]] = {True: Counter(), False: Counter()}
    for part in session.get_provider_graph_assignment_info():
        given[part.ep_name == PROVIDER].update(node.op_type for node in part.get_nodes())
    done = since(before)
    copies = done.get("copy_out", 0), done.get("copy_in", 0)
    return Row(given[True].total(), done.get("compiled", 0), given[False], *copies)


def faults(before: onnx.ModelProto, ways: Sequence[onnx.ModelProto], inputs: Path) -> list[str]:
    """Of the given inputs: where the optimized model differs from the file, and each on the provider from the CPU.

    Inputs of another size that the file itself does not take, since its exporter wrote the first one's size into it,
    are left out.
    """
    import onnxruntime as ort

    found = []
    session = ort.InferenceSession(before.SerializeToString(), _with_our_operators(ort), ["CPUExecutionProvider"])
    arrays = np.load(inputs)
    names = {i.name for i in before.graph.input}
    for prefix in sorted({key[:2] for key in arrays}):
        feeds = {key[2:]: arrays[key] for key in arrays if key[:2] == prefix and key[2:] in names}
        try:
            session.run(None, feeds)
        except Exception:  # the runtime's exception classes share no public base
            if prefix == "0:":
                raise
            print(f"takes no inputs of another size than its exporter's: {inputs.stem}", file=sys.stderr, flush=True)
            continue
        questions: list[tuple[str, onnx.ModelProto, onnx.ModelProto, tuple[str, str] | None]] = [
            ("optimized", before, ways[-1], None),
            *((f"provider {i}", before, way, ("cpu", "graphopt")) for i, way in enumerate(ways)),
        ]
        for label, first, second, providers in questions:
            report = graphopt.verify(first, second, inputs=feeds, providers=providers, effort="quick")
            if not report.equal:
                worst = report.worst
                found.append(f"{prefix}{label}: {report.verdict} {worst.name + ' ' + worst.reason if worst else ''}")
    return found


def _with_our_operators(ort: Any) -> Any:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.register_custom_ops_library(str(library_path()))
    return options


def models(given: list[Path]) -> Iterator[tuple[str, onnx.ModelProto, Path | None]]:
    """Name, model, and the file of its inputs."""
    for path in given:
        for file in sorted(path.glob("*.onnx")) if path.is_dir() else [path]:
            inputs = file.with_suffix(".npz")
            yield file.stem, onnx.load(file), inputs if inputs.exists() else None
    if given:
        return
    for name, build in ZOO.items():
        yield name, build(small=True, dynamic=True), None
    for name in TRAINED:
        yield name, onnx.load(fetch(name)), None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", type=Path)
    parser.add_argument("--out", type=Path, help="write the table to this file as well")
    arguments = parser.parse_args()
    if os.environ.get("GRAPHOPT_TEST_ON_GPU") != "1":
        os.environ["GRAPHOPT_HOST_KERNELS"] = kernels_on_the_cpu()
    import onnxruntime as ort

    ort.register_execution_provider_library("graphopt", str(library_path()))
    lines = ["| model | provider | regions | CPU | copies to host | copies to device | on the CPU |"]
    lines.append("|---|--:|--:|--:|--:|--:|---|")
    print(*lines, sep="\n", flush=True)
    wrong: list[str] = []
    for name, model, inputs in models(arguments.models):
        found: list[str] = []
        try:
            ways = (model, graphopt.optimize(model, target=TARGET)[0])
            for label, way in zip(("", ", optimized"), ways, strict=True):
                lines.append(placed(way.SerializeToString()).text(name + label))
                print(lines[-1], flush=True)
            found = faults(model, ways, inputs) if inputs else []
        except Exception as error:  # the walk goes on
            found.append(f"{type(error).__name__}: {(str(error).splitlines() or ['?'])[0]}")
        for fault in found:
            wrong.append(f"{name}: {fault}")
            print(wrong[-1], file=sys.stderr, flush=True)
    if arguments.out:
        arguments.out.write_text("\n".join(lines) + "\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
