"""A written model consists of OUT and at most one OUT.data, and does not depend on the input's files."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import graphopt
from graphopt.errors import ModelLoadError, ModelSaveError, OptionError
from graphopt.lower import lower
from graphopt.passes.registry import PASSES

pytestmark = pytest.mark.once

SIDE = 40


def weight(rng: np.random.Generator) -> np.ndarray:
    return rng.normal(size=(SIDE, SIDE)).astype(np.float32)


def outside(tensor: TensorProto, folder: Path, location: str, *, at: int | None = None) -> TensorProto:
    """Returns the tensor with its bytes appended to a file, or referring to existing bytes at `at`."""
    moved = TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
    path = folder / location
    path.parent.mkdir(exist_ok=True)
    content = path.read_bytes() if path.exists() else b""
    if at is None:
        at = len(content)
        path.write_bytes(content + tensor.raw_data + bytes(24))
    moved.data_location = TensorProto.EXTERNAL
    for key, value in {"location": location, "offset": at, "length": len(tensor.raw_data)}.items():
        moved.external_data.add(key=key, value=str(value))
    return moved


def made(nodes: list[onnx.NodeProto], weights: list[TensorProto]) -> onnx.ModelProto:
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ["N", SIDE]) for n in "xy")
    graph = helper.make_graph(nodes, "g", [x], [y], weights)
    return helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])


def chain(count: int) -> list[onnx.NodeProto]:
    """Returns GEMMs with w0, w1, ..., an Identity that is removed, and a Relu."""
    nodes = [
        helper.make_node("MatMul", [f"t{i}" if i else "x", f"w{i}"], [f"t{i + 1}"], name=f"product{i}")
        for i in range(count)
    ]
    return [*nodes, helper.make_node("Identity", [f"t{count}"], ["t"]), helper.make_node("Relu", ["t"], ["y"])]


def one_file(folder: Path, weights: list[TensorProto]) -> onnx.ModelProto:
    return made(chain(3), [outside(w, folder, "m.onnx.data") for w in weights])


def several_files(folder: Path, weights: list[TensorProto]) -> onnx.ModelProto:
    places = ("a.bin", "deep/b.bin", "a.bin")
    return made(chain(3), [outside(w, folder, p) for w, p in zip(weights, places, strict=True)])


def same_offsets(folder: Path, weights: list[TensorProto]) -> onnx.ModelProto:
    """Stores w1 in the bytes of w0, and w2 in the second half of these and the bytes after them."""
    first = outside(weights[0], folder, "w")
    outside(weights[1], folder, "w", at=None)
    return made(chain(3), [first, outside(weights[1], folder, "w", at=0), outside(weights[2], folder, "w", at=3200)])


def inline_too(folder: Path, weights: list[TensorProto]) -> onnx.ModelProto:
    return made(chain(3), [weights[0], outside(weights[1], folder, "w"), weights[2]])


def in_attributes(folder: Path, weights: list[TensorProto]) -> onnx.ModelProto:
    """Constants as `onnx.save(convert_attribute=True)` writes them."""
    nodes = [
        helper.make_node("Constant", [], [w.name], value=outside(w, folder, "w")) if i else None
        for i, w in enumerate(weights)
    ]
    return made([*(n for n in nodes if n is not None), *chain(3)], [outside(weights[0], folder, "w")])


def in_branches(folder: Path, weights: list[TensorProto]) -> onnx.ModelProto:
    y = helper.make_tensor_value_info("b", TensorProto.FLOAT, ["N", SIDE])
    branches = [
        helper.make_graph([helper.make_node("MatMul", ["x", w.name], ["b"])], "b", [], [y], [outside(w, folder, "w")])
        for w in weights[:2]
    ]
    nodes = [
        helper.make_node("ReduceSum", ["x"], ["sum"], keepdims=0),
        helper.make_node("Greater", ["sum", "zero"], ["positive"]),
        helper.make_node("If", ["positive"], ["t0"], then_branch=branches[0], else_branch=branches[1]),
        helper.make_node("Identity", ["t0"], ["t"]),
        helper.make_node("MatMul", ["t", "w2"], ["y"]),
    ]
    zero = numpy_helper.from_array(np.zeros((), np.float32), "zero")
    return made(nodes, [outside(weights[2], folder, "w"), zero])


def sparse(folder: Path, weights: list[TensorProto]) -> onnx.ModelProto:
    """w1 and w2 are sparse, one with linear indices and one with coordinates."""
    model = made(chain(3), [outside(weights[0], folder, "w")])
    places = np.array([[3, 1], [7, 39], [39, 0]])
    for name, indices in (("w1", places @ [SIDE, 1]), ("w2", places)):
        added = model.graph.sparse_initializer.add(dims=[SIDE, SIDE])
        added.values.CopyFrom(numpy_helper.from_array(np.array([1.5, -2, 3], np.float32), name))
        added.indices.CopyFrom(numpy_helper.from_array(indices.astype(np.int64), f"{name}_indices"))
    return model


def with_strings(folder: Path, weights: list[TensorProto]) -> onnx.ModelProto:
    """2 KiB of labels, which are never external."""
    model = one_file(folder, weights)
    names = np.array([f"the label of number {i:32}" for i in range(SIDE)], object)
    model.graph.initializer.append(numpy_helper.from_array(names, "names"))
    model.graph.node.append(helper.make_node("ArgMax", ["y"], ["i"], axis=1, keepdims=0))
    model.graph.node.append(helper.make_node("Gather", ["names", "i"], ["label"]))
    model.graph.output.append(helper.make_tensor_value_info("label", TensorProto.STRING, ["N"]))
    return model


FORMS = [one_file, several_files, same_offsets, inline_too, in_attributes, in_branches, sparse, with_strings]
Form = Callable[[Path, list[TensorProto]], onnx.ModelProto]


def model(folder: Path, form: Form = one_file, seed: int = 0) -> Path:
    folder.mkdir(exist_ok=True)
    rng = np.random.default_rng(seed)
    weights = [numpy_helper.from_array(weight(rng), f"w{i}") for i in range(3)]
    path = folder / "m.onnx"
    path.write_bytes(form(folder, weights).SerializeToString())
    return path


X = np.random.default_rng(9).normal(size=(3, SIDE)).astype(np.float32)


def run(path: Path) -> np.ndarray:
    """Runs a file with ONNX Runtime, without our library."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    y: np.ndarray = session.run(None, {"x": X})[0]
    return y


def run_alone(out: Path, elsewhere: Path) -> np.ndarray:
    """Moves OUT and OUT.data, and nothing else, into another folder, and runs the model there."""
    elsewhere.mkdir()
    for path in (out, out.with_name(f"{out.name}.data")):
        if path.exists():
            path.rename(elsewhere / path.name)
    onnx.load(elsewhere / out.name)
    return run(elsewhere / out.name)


def listing(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("place", ["same folder", "another folder"])
@pytest.mark.parametrize("write", [graphopt.optimize, lower])
def test_every_form_of_input(form: Form, place: str, write: Callable[..., Any], tmp_path: Path) -> None:
    path = model(tmp_path / "in", form)
    want, before = run(path), listing(tmp_path)
    out = tmp_path / ("in" if place == "same folder" else "out") / "fast.onnx"
    out.parent.mkdir(exist_ok=True)
    write(path, out)
    new = sorted(set(listing(tmp_path)) - set(before))
    assert new == [str(p.relative_to(tmp_path)) for p in (out, out.with_name("fast.onnx.data"))]
    for name in before:
        (tmp_path / name).write_bytes(b"other contents")
    np.testing.assert_array_equal(run_alone(out, tmp_path / "alone"), want)


@pytest.mark.parametrize("form", [one_file, in_attributes])
def test_lower_to_another_opset(form: Form, tmp_path: Path) -> None:
    """ONNX's converter does not know the folder."""
    path, out = model(tmp_path / "in", form), tmp_path / "out.onnx"
    lower(path, out, opset=18)
    np.testing.assert_array_equal(run_alone(out, tmp_path / "alone"), run(path))


def test_shared_bytes_of_a_file_are_copied_once(tmp_path: Path) -> None:
    out = tmp_path / "fast.onnx"
    graphopt.optimize(model(tmp_path / "in", same_offsets), out)
    assert out.with_name("fast.onnx.data").stat().st_size == 3200 + 4 * SIDE * SIDE


def test_only_weights_in_use_are_copied(tmp_path: Path) -> None:
    """The 3 MiB between two weights in the file are not needed."""
    path = model(tmp_path / "in")
    proto = onnx.load(path, load_external_data=False)
    data = path.with_name("m.onnx.data").read_bytes()
    size = 4 * SIDE * SIDE
    path.with_name("m.onnx.data").write_bytes(data + b"?" * (3 << 20) + data[:size])
    for entry in proto.graph.initializer[2].external_data:
        if entry.key == "offset":
            entry.value = str(len(data) + (3 << 20))
    path.write_bytes(proto.SerializeToString())
    want = run(path)
    graphopt.optimize(path, tmp_path / "fast.onnx")
    assert (tmp_path / "fast.onnx.data").stat().st_size < 4 * size
    np.testing.assert_array_equal(run_alone(tmp_path / "fast.onnx", tmp_path / "alone"), want)


def test_the_copy_is_no_link(tmp_path: Path) -> None:
    path = model(tmp_path)
    graphopt.optimize(path, tmp_path / "fast.onnx")
    data = tmp_path / "fast.onnx.data"
    assert data.stat().st_nlink == 1 and not data.is_symlink()
    assert data.stat().st_ino != (tmp_path / "m.onnx.data").stat().st_ino
    want = run(path)
    with (tmp_path / "m.onnx.data").open("r+b") as file:  # an export overwrites it
        file.write(bytes(4 * SIDE * SIDE))
    assert not np.array_equal(run(path), want)
    np.testing.assert_array_equal(run(tmp_path / "fast.onnx"), want)


class Program:
    """A stand-in for the result of `torch.onnx.export`."""

    def __init__(self, inner: ir.Model) -> None:
        self.model = inner


IN_MEMORY: dict[str, Callable[[Path], Any]] = {
    "ModelProto": lambda path: onnx.load(path, load_external_data=False),
    "onnx_ir.Model": ir.load,
    "ONNXProgram": lambda path: Program(ir.load(path)),
    "graphsurgeon": lambda path: gs.import_onnx(onnx.load(path)),
}


@pytest.mark.parametrize("form", IN_MEMORY)
def test_models_in_memory(form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = model(tmp_path / "in")
    want = run(path)
    monkeypatch.chdir(path.parent)  # the folder of the ModelProto's files
    given = IN_MEMORY[form](path)
    out = tmp_path / "fast.onnx"
    returned, report = graphopt.optimize(given, out)
    assert returned == out and report.changed
    assert list(report.files) == [str(tmp_path / n) for n in listing(tmp_path) if n.startswith("fast")]
    np.testing.assert_array_equal(run_alone(out, tmp_path / "alone"), want)


@pytest.mark.parametrize("changed", [False, True])
def test_a_message_has_its_weights_inside(changed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = model(tmp_path / "in", in_attributes)
    want = run(path)
    monkeypatch.chdir(path.parent)
    given = onnx.load(path, load_external_data=False)
    after, report = graphopt.optimize(given, skip=[] if changed else [p.name for p in PASSES])
    assert report.changed == changed
    assert given.graph.initializer[0].data_location == TensorProto.EXTERNAL  # the argument is not changed
    out = tmp_path / "alone.onnx"
    out.write_bytes(after.SerializeToString())
    np.testing.assert_array_equal(run(out), want)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelLoadError, match=r"'w0' is missing: no file 'w'; give the model's path, or load its data"):
        graphopt.optimize(given)


def test_in_place(tmp_path: Path) -> None:
    """IN.data is read while the new IN.data is written."""
    path = model(tmp_path)
    want = run(path)
    graphopt.optimize(path, path, in_place=True)
    assert listing(tmp_path) == ["m.onnx", "m.onnx.data"]
    np.testing.assert_array_equal(run(path), want)
    graphopt.optimize(path, path, in_place=True, external_data=False)
    assert listing(tmp_path) == ["m.onnx"]
    np.testing.assert_array_equal(run(path), want)


@pytest.mark.parametrize("skip", [[], [p.name for p in PASSES]], ids=["changed", "nothing to do"])
def test_in_place_with_several_files(skip: list[str], tmp_path: Path) -> None:
    path = model(tmp_path, several_files)
    want = run(path)
    graphopt.optimize(path, path, in_place=True, skip=skip)
    np.testing.assert_array_equal(run_alone(path, tmp_path / "alone"), want)


@pytest.mark.parametrize("external_data", [None, False])
@pytest.mark.parametrize("write", [graphopt.optimize, lower])
def test_out_data_must_not_replace_weights_of_the_input(
    write: Callable[..., Any], external_data: bool | None, tmp_path: Path
) -> None:
    path = model(tmp_path)
    path = path.rename(tmp_path / "renamed.onnx")
    want = run(path)
    options = {"external_data": external_data} if write is graphopt.optimize else {}
    with pytest.raises(ModelSaveError, match=r"m\.onnx\.data: the data file of OUT would overwrite the input"):
        write(path, tmp_path / "m.onnx", **options)
    assert listing(tmp_path) == ["m.onnx.data", "renamed.onnx"]
    np.testing.assert_array_equal(run(path), want)


def test_out_data_of_an_earlier_out(tmp_path: Path) -> None:
    """OUT.data is removed with the model that referred to it, and kept if no model of this name did."""
    path, out = model(tmp_path / "in"), tmp_path / "out.onnx"
    graphopt.optimize(path, out)
    graphopt.optimize(path, out, external_data=False)
    assert [n for n in listing(tmp_path) if n.startswith("out")] == ["out.onnx"]
    (tmp_path / "out.onnx.data").write_bytes(b"mine")
    graphopt.optimize(path, out, external_data=False)
    assert (tmp_path / "out.onnx.data").read_bytes() == b"mine"


def test_the_old_pair_or_the_new_one_at_every_moment(tmp_path: Path) -> None:
    """A reader between any two changes of the folder finds a model with its own weights."""
    first, second = (model(tmp_path / name, seed=seed) for seed, name in enumerate(("a", "b")))
    outs = [run(first), run(second)]
    out = tmp_path / "out.onnx"
    graphopt.optimize(first, out)
    assert np.array_equal(run(out), outs[0])
    seen = []

    def look(frame: Any, event: str, what: Any) -> None:
        if event == "c_return" and what in (os.replace, os.rename, os.link, os.unlink):
            sys.setprofile(None)
            y = run(out)
            seen.append([np.array_equal(y, want) for want in outs])
            sys.setprofile(look)

    sys.setprofile(look)
    try:
        graphopt.optimize(second, out)
    finally:
        sys.setprofile(None)
    assert len(seen) > 2 and all(any(found) for found in seen)
    assert seen[-1] == [False, True]
    assert [n for n in listing(tmp_path) if "/" not in n] == ["out.onnx", "out.onnx.data"]


def test_a_failure_leaves_the_old_pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The old pair survives a failure of any rename."""
    first, second = (model(tmp_path / name, seed=seed) for seed, name in enumerate(("a", "b")))
    want, new, out = run(first), run(second), tmp_path / "out.onnx"
    graphopt.optimize(first, out)
    replace, failing = Path.replace, [0]

    def fail(self: Path, target: Path) -> Path:
        failing[0] -= 1
        if failing[0] == 0:
            raise OSError(5, "Input/output error")
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", fail)
    for number in (1, 2, 3):
        failing[0] = number
        with pytest.raises(ModelSaveError, match="Input/output error"):
            graphopt.optimize(second, out)
        found = run(out)
        assert np.array_equal(found, want) or np.array_equal(found, new)
        failing[0] = 0
        graphopt.optimize(first, out)
        np.testing.assert_array_equal(run(out), want)


def test_the_output_lists_the_files(tmp_path: Path, graphopt_command: Callable[..., Any]) -> None:
    path, out, report = model(tmp_path / "in"), tmp_path / "fast.onnx", tmp_path / "r.json"
    for command in (("optimize", "--json", report), ("lower",)):
        done = graphopt_command(command[0], path, out, *command[1:])
        assert done.exit_code == 0, done.stderr
        assert f"weights in {out}.data (18.8 KiB)" in re.sub(r"\s*\n\s*", "", done.stdout.replace("…", ""))
    files = json.loads(report.read_text())["files"]
    assert files[f"{out}.data"] == (tmp_path / "fast.onnx.data").stat().st_size


def shared(tmp_path: Path) -> tuple[Path, Path]:
    path, out = model(tmp_path), tmp_path / "fast.onnx"
    graphopt.optimize(path, out)  # the next call makes this OUT.data unused
    graphopt.optimize(path, out, share_weights=True)
    return path, out


def test_sharing_weights(tmp_path: Path, graphopt_command: Callable[..., Any]) -> None:
    path, out = shared(tmp_path)
    assert listing(tmp_path) == ["fast.onnx", "m.onnx", "m.onnx.data"]
    np.testing.assert_array_equal(run(out), run(path))
    again = tmp_path / "again.onnx"
    done = graphopt_command("optimize", path, again, "--share-weights")
    assert "shares the weights of" in done.stdout and "m.onnx.data" in done.stdout
    done = graphopt_command("lower", path, again, "--share-weights")
    assert "shares the weights of" in done.stdout
    assert "again.onnx.data" not in listing(tmp_path)
    # A copy of the model shares no weights and has no record of shared ones.
    copy = tmp_path / "copy.onnx"
    graphopt.optimize(out, copy)
    assert "graphopt.shared_weights" not in {p.key for p in onnx.load(copy).metadata_props}
    np.testing.assert_array_equal(run_alone(copy, tmp_path / "alone"), run(path))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (lambda old: old[::-1], "has other contents"),
        (lambda old: old + b"0", "has 19273 bytes instead of 19272"),
        (lambda old: None, "cannot be read (no such file)"),
    ],
    ids=["of the same size", "longer", "removed"],
)
def test_shared_weights_that_change(content: Callable[[bytes], bytes | None], words: str, tmp_path: Path) -> None:
    _, out = shared(tmp_path)
    data = tmp_path / "m.onnx.data"
    old = data.read_bytes()
    graphopt.session(out, ["CPUExecutionProvider"])
    if (new := content(old)) is not None:
        data.write_bytes(new)
    else:
        data.unlink()
    message = re.escape(f"{out}: shares the weights of {data}, which {words}")
    for use in (lambda: graphopt.session(out, ["CPUExecutionProvider"]), lambda: graphopt.verify(out, out)):
        with pytest.raises(ModelLoadError, match=f"{message}.*; restore that file, or optimize the original again"):
            use()
    data.write_bytes(old)
    graphopt.session(out, ["CPUExecutionProvider"])


def test_sharing_weights_of_a_folder_below(tmp_path: Path) -> None:
    path = model(tmp_path / "in", several_files)
    _, report = graphopt.optimize(path, tmp_path / "fast.onnx", share_weights=True)
    assert list(report.shared_files) == [str(path.parent / "a.bin"), str(path.parent / "deep" / "b.bin")]
    np.testing.assert_array_equal(run(tmp_path / "fast.onnx"), run(path))


def test_sharing_is_refused(tmp_path: Path) -> None:
    path = model(tmp_path / "in")
    (tmp_path / "out").mkdir()
    with pytest.raises(ModelSaveError, match="needs OUT in the folder of the model that it shares with"):
        graphopt.optimize(path, tmp_path / "out" / "fast.onnx", share_weights=True)
    with pytest.raises(OptionError, match="--in-place replaces"):
        graphopt.optimize(path, path, share_weights=True, in_place=True)
    with pytest.raises(OptionError, match="weights inside the model cannot be shared"):
        graphopt.Options(share_weights=True, external_data=False)
    assert listing(tmp_path) == ["in/m.onnx", "in/m.onnx.data"]


def test_a_record_that_is_damaged(tmp_path: Path) -> None:
    _, out = shared(tmp_path)
    for record in ("[]", "x", '{"m.onnx.data": 3}', '{"/dev/zero": {"bytes": 0, "sha256": "0"}}'):
        proto = onnx.load(out, load_external_data=False)
        onnx.helper.set_model_props(proto, {"graphopt.shared_weights": record})
        out.write_bytes(proto.SerializeToString())
        with pytest.raises(ModelLoadError, match=r"cannot be read"):
            graphopt.session(out, ["CPUExecutionProvider"])


def test_serve_config(tmp_path: Path, graphopt_command: Callable[..., Any]) -> None:
    path = model(tmp_path / "in", several_files)
    want = run(path)
    done = graphopt_command("serve-config", path, tmp_path / "served", "--for", "triton", "--max-batch", 1)
    assert done.exit_code == 0, done.stderr
    for path in list((tmp_path / "in").rglob("*.bin")):
        path.unlink()
    for engine in ("onnxruntime", "python"):
        folder = tmp_path / "served" / engine / "m" / "1"
        assert [n for n in listing(folder) if not n.endswith(".py")] == [
            "model.onnx",
            "model.onnx.data",
            "serving.json",
        ]
        np.testing.assert_array_equal(run_alone(folder / "model.onnx", tmp_path / engine), want)
