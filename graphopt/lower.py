"""Replaces operators that only one runtime supports by standard ONNX."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnx_ir.passes.common as ir_passes

from graphopt import files, pipeline
from graphopt.contrib import CONTRIB
from graphopt.contrib.schema import DOMAIN as MICROSOFT
from graphopt.errors import OptionError, one_line
from graphopt.graph import inference, reading, traversal, writing
from graphopt.graph.editor import Editor
from graphopt.graph.view import is_op
from graphopt.ops import DOMAIN
from graphopt.passes.contrib import Contrib
from graphopt.remarks import Remark
from graphopt.targets.profit import EveryLegalCandidate
from graphopt.targets.target import Target

TO = ("onnxruntime", "standard")
# Size limit of protobuf messages; onnx's version converter needs the model as one message.
MAX_CONVERTED_BYTES = 2**31 - 1


@dataclass
class Lowered:
    """Result of `lower`.

    Attributes:
        inlined: number of nodes of our domain that were replaced by their function bodies.
        defined: operator -> number of nodes that were replaced by their definitions.
        kept: refusals, one for each node that was not replaced; `nodes[0]` of a refusal is the name of its node.
        opset: opset of the result.
        files: path -> bytes of each written file, the result's model first.
        shared_files: path -> bytes of each file of the input that the result refers to.
    """

    inlined: int
    defined: Counter[str] = field(default_factory=Counter)
    kept: list[Remark] = field(default_factory=list)
    opset: int = 0
    files: dict[Path, int] = field(default_factory=dict)
    shared_files: dict[Path, int] = field(default_factory=dict)


def lower(
    path: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    to: str = "onnxruntime",
    opset: int | None = None,
    share_weights: bool = False,
) -> Lowered:
    """Writes a copy of a model with standard ONNX instead of the nodes of our domain.

    Args:
        path: the model.
        out: the file to write.
        to: "onnxruntime" keeps the operators of ONNX Runtime; "standard" replaces these as well (graphopt/contrib).
        opset: version of the standard operators in the result; None keeps the model's version.
        share_weights: as for `optimize`.

    Raises:
        ModelLoadError: the model cannot be read.
        ModelSaveError: the result cannot be written, or would overwrite the input.
        OptionError: an unknown `to`, or the model cannot be converted to `opset`.
    """
    if to not in TO:
        raise OptionError(f"--to {to}: choose {' or '.join(TO)}")
    files.check_output_paths({"OUT": Path(out)}, [Path(path)])
    source = reading.load(path)
    work = source.model
    writing.check_output_path("OUT", Path(out), source.data_files)
    done = Lowered(inlined=sum(node.domain == DOMAIN for node in traversal.nodes(work)))
    _inline(work)
    if to == "standard":
        with reading.as_load_error(source):
            _replace_contrib(work, done)
    _write_constants_as_tensors(work)
    if opset is not None and opset != work.opset_imports.get("", opset):
        work = _convert_opset(work, opset)
    done.opset = work.opset_imports.get("", 0)
    written = writing.save(work, Path(out), share_weights=share_weights)
    done.files, done.shared_files = written.files, written.shared
    return done


def _inline(work: ir.Model) -> None:
    ir_passes.InlinePass(criteria=lambda function: function.domain == DOMAIN)(work)
    for identifier in [i for i, f in work.functions.items() if f.domain == DOMAIN]:
        del work.functions[identifier]
    work.opset_imports.pop(DOMAIN, None)


def _write_constants_as_tensors(work: ir.Model) -> None:
    """Rewrites the attributes value_float(s) and value_int(s) of Constants as `value`, the only one in some engines."""
    for node in traversal.nodes(work):
        if not is_op(node, "Constant") or len(node.attributes) != 1:
            continue
        attribute = next(iter(node.attributes.values()))
        dtype = {"value_float": np.float32, "value_int": np.int64}.get(attribute.name.removesuffix("s"))
        if dtype is not None and not attribute.is_ref():
            del node.attributes[attribute.name]
            node.attributes["value"] = ir.AttrTensor("value", ir.tensor(np.array(attribute.value, dtype)))


def _replace_contrib(work: ir.Model, done: Lowered) -> None:
    before = _count_contrib(work)
    inference.infer(work)
    result = pipeline.run(Editor(work, Target("portable"), EveryLegalCandidate()), [Contrib()])
    inference.forget(work)
    after = _count_contrib(work)
    done.defined = before - after
    done.kept = [r for r in result.remarks if not r.applied]
    if not any(node.domain == MICROSOFT for node in traversal.nodes(work)):
        for imports in (work.opset_imports, *(f.opset_imports for f in work.functions.values())):
            imports.pop(MICROSOFT, None)


def _count_contrib(work: ir.Model) -> Counter[str]:
    return Counter(
        n.op_type for n in traversal.nodes(work) if n.domain == MICROSOFT or (n.domain, n.op_type) in CONTRIB
    )


def _opset_advice(work: ir.Model, opset: int) -> str:
    """Returns advice with the lowest opset that has every operator of a model; "" if it is not above `opset`."""
    own = work.opset_imports.get("", opset)
    used = {node.op_type for node in traversal.nodes(work) if node.domain == ""}
    since: dict[str, int] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        if schema.domain == "" and schema.name in used:
            since[schema.name] = min(schema.since_version, since.get(schema.name, schema.since_version))
    newest = max(since, key=lambda op: since[op], default="")
    lowest = since.get(newest, 0)
    if lowest <= opset:
        return ""
    return (
        f"; {newest} exists since opset {lowest}: use --opset {lowest}"
        + (f" (or higher, up to the model's {own})" if own > lowest else "")
        + f", or export the model for opset {opset}, where exporters write {newest} as simpler operators"
    )


def _convert_opset(work: ir.Model, opset: int) -> ir.Model:
    """Converts the model to another opset with onnx's converter."""
    if work.functions:
        raise OptionError("--opset: onnx's converter loses model-local functions; inline them first")
    if sum(t.nbytes for t in traversal.external_tensors(traversal.graphs(work))) > MAX_CONVERTED_BYTES:
        raise OptionError("--opset: the model's weights are larger than 2 GiB, the limit of onnx's converter")
    before = ir.serde.serialize_model(work)
    folders = {str(tensor.location): tensor.base_dir for tensor in traversal.external_tensors(traversal.graphs(work))}
    try:
        after = onnx.version_converter.convert_version(before, opset)
    except Exception as error:
        # The converter's message begins with a source location and the failed condition.
        why = one_line(error).rpartition(" failed: ")[2].removeprefix("Warning: ").replace("$", "")
        advice = _opset_advice(work, opset)
        raise OptionError(f"--opset {opset}: onnx's version converter failed: {why}{advice}") from error
    # The converter drops the name and documentation of the graph, and everything outside of the graph.
    after.metadata_props.extend(p for p in before.metadata_props if p not in after.metadata_props)
    after.graph.name, after.graph.doc_string = before.graph.name, before.graph.doc_string
    for name in ("doc_string", "domain", "model_version", "producer_name", "producer_version"):
        setattr(after, name, getattr(before, name))
    after.ir_version = before.ir_version
    converted = ir.serde.deserialize_model(after)
    for tensor in traversal.external_tensors(traversal.graphs(converted)):
        tensor.base_dir = folders[str(tensor.location)]
    return converted
