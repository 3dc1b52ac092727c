"""Where the provider lets nodes of whole models run, and how many copies lie between: docs/measurements/placement.md.

Usage:

    python scripts/provider_placement.py [--out TABLE] [MODEL_OR_FOLDER ...]

Without arguments: the zoo with symbolic batch and length, and the trained models of models/pypi.py, each as it is and
as `optimize` leaves it. A folder stands for the .onnx files in it (scripts/export_attention.py fills one). No model
runs. The device is the CPU with the GPU kernels compiled for it, or with GRAPHOPT_TEST_ON_GPU=1 this machine's GPU.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import onnx

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import graphopt
from graphopt.runtime.sessions import library_path
from models import ZOO
from models.pypi import TRAINED, fetch
from tests.provider.worker import PROVIDER, kernels_on_the_cpu

TARGET = "cuda"


@dataclass(frozen=True)
class Row:
    """One session.

    Attributes:
        there: nodes on the provider.
        elsewhere: kind of node -> how many the CPU has, bodies of If, Loop and Scan included.
        to_host, to_device: copies that the runtime put between.
    """

    there: int
    elsewhere: Counter[str]
    to_host: int
    to_device: int

    def text(self, name: str) -> str:
        left = ", ".join(f"{op} {n}" if n > 1 else op for op, n in self.elsewhere.most_common())
        return (
            f"| {name} | {self.there} | {sum(self.elsewhere.values())} | {self.to_host} | {self.to_device} | {left} |"
        )


def placed(model: bytes) -> Row:
    """A session on the provider, with the runtime's own optimizers, that is saved and not run."""
    import onnxruntime as ort

    with tempfile.TemporaryDirectory() as folder:
        options = ort.SessionOptions()
        options.log_severity_level = 3
        options.register_custom_ops_library(str(library_path()))
        options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
        options.optimized_model_filepath = str(Path(folder) / "saved.onnx")
        device = next(d for d in ort.get_ep_devices() if d.ep_name == PROVIDER)
        # What was compiled cannot be saved; regions change nothing of what is taken.
        options.add_provider_for_devices([device], {"regions": "0"})
        session = ort.InferenceSession(model, options)
        parts = session.get_provider_graph_assignment_info()
        given: dict[bool, Counter[str]] = {True: Counter(), False: Counter()}
        for part in parts:
            given[part.ep_name == PROVIDER].update(node.op_type for node in part.get_nodes())
        copies = Counter(n.op_type for n in nodes_of(onnx.load(options.optimized_model_filepath).graph))
    there = sum(n for op, n in given[True].items() if not op.startswith("Memcpy"))
    elsewhere = Counter({op: n for op, n in given[False].items() if not op.startswith("Memcpy")})
    return Row(there, elsewhere, copies["MemcpyToHost"], copies["MemcpyFromHost"])


def nodes_of(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from nodes_of(attribute.g)


def models(given: list[Path]) -> Iterator[tuple[str, onnx.ModelProto]]:
    for path in given:
        for file in sorted(path.glob("*.onnx")) if path.is_dir() else [path]:
            yield file.stem, onnx.load(file)
    if given:
        return
    for name, build in ZOO.items():
        yield name, build(small=True, dynamic=True)
    for name in TRAINED:
        yield name, onnx.load(fetch(name))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", type=Path)
    parser.add_argument("--out", type=Path, help="write the table to this file as well")
    arguments = parser.parse_args()
    if os.environ.get("GRAPHOPT_TEST_ON_GPU") != "1":
        os.environ["GRAPHOPT_HOST_KERNELS"] = kernels_on_the_cpu()
    import onnxruntime as ort

    ort.register_execution_provider_library("graphopt", str(library_path()))
    lines = ["| model | provider | CPU | copies to host | copies to device | on the CPU |", "|---|--:|--:|--:|--:|---|"]
    print(*lines, sep="\n", flush=True)
    for name, model in models(arguments.models):
        for label, way in (("", model), (", optimized", graphopt.optimize(model, target=TARGET)[0])):
            lines.append(placed(way.SerializeToString()).text(name + label))
            print(lines[-1], flush=True)
    if arguments.out:
        arguments.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
