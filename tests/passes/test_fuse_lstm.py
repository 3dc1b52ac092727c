"""Unrolled time steps become LSTM: the forms that frameworks export, initial states, orders, and refusals."""

from __future__ import annotations

import re

import numpy as np
import onnx
import pytest

from graphopt.passes.clean_up import CleanUp
from graphopt.passes.fuse_lstm import FuseLstm
from tests.rewriting import Array, Rewritten, assert_same_outputs, model_from_text, rewrite

RNG = np.random.default_rng(50)
T, N, I, H = 4, 3, 5, 6  # noqa: E741
CELL = """s{t}i = Sigmoid(i{t}) s{t}f = Sigmoid(f{t}) s{t}o = Sigmoid(o{t}) t{t}g = Tanh(g{t})
    k{t} = Mul(s{t}f, {c}) a{t} = Mul(s{t}i, t{t}g) c{t} = Add(k{t}, a{t}) t{t}c = Tanh(c{t})
    h{t} = Mul(s{t}o, t{t}c) """
# The sums before the activations, as PyTorch, Keras, TensorFlow's LSTMCell and two hand-written modules export them.
GATES = {
    "torch": """m{t} = Gemm <transB = 1> ({h}, Rt, r) n{t} = Gemm <transB = 1> ({x}, Wt, b) z{t} = Add(m{t}, n{t})
        i{t}, f{t}, g{t}, o{t} = Split <axis = 1> (z{t}) """,
    "keras": """m{t} = MatMul({x}, W) n{t} = MatMul({h}, R) y{t} = Add(m{t}, n{t}) z{t} = Add(y{t}, b)
        i{t}, f{t}, g{t}, o{t} = Split <axis = -1> (z{t}) """,
    "tensorflow": """v{t} = Concat <axis = 1> ({x}, {h}) m{t} = MatMul(v{t}, WR) z{t} = Add(m{t}, b)
        i{t}, g{t}, e{t}, o{t} = Split <axis = 1> (z{t}) f{t} = Add(e{t}, one) """,
    "slices": """m{t} = MatMul({x}, W) n{t} = Gemm({h}, R, b) z{t} = Add(m{t}, n{t}) i{t} = Slice(z{t}, p0, p6, ax)
        f{t} = Slice(z{t}, p6, p12, ax) g{t} = Slice(z{t}, p12, n6, ax) o{t} = Slice(z{t}, n6, far, ax) """,
    "each gate": "".join(
        "m{t}" + g + " = Gemm({x}, W" + g + ", b" + g + ") n{t}" + g + " = MatMul({h}, R" + g + ") "
        f"{g}{{t}} = Add(m{{t}}{g}, n{{t}}{g}) "
        for g in "ifgo"
    ),
}


def draw(*shape: int) -> Array:
    drawn: Array = RNG.standard_normal(shape) / np.sqrt(shape[-1])
    return drawn.astype(np.float32)


def constants() -> dict[str, Array]:
    W, R = draw(I, 4 * H), draw(H, 4 * H)
    named = {
        "W": W,
        "Wt": W.T,
        "R": R,
        "Rt": R.T,
        "Qt": draw(4 * H, H),
        "WR": np.concatenate([W, R]),
        "b": draw(4 * H),
        "r": draw(4 * H),
    }
    named |= {f"b{t}": draw(4 * H) for t in range(T)}
    for g in "ifgo":
        named |= {f"W{g}": draw(I, H), f"R{g}": draw(H, H), f"b{g}": draw(H)}
    named["one"] = np.ones(1, np.float32)
    named |= {"scale": np.array(0.01, np.float32), "Wq": np.round(W * 100).astype(np.int8)}
    places = {"p0": 0, "p6": H, "p12": 2 * H, "n6": -H, "far": 2**31 - 1, "ax": 1, "first": 0, "last": 2, "d1": 1}
    named |= {name: np.array([n]) for name, n in places.items()}
    return named | {f"at{t}": np.array(t) for t in range(T)} | {f"lo{t}": np.array([t]) for t in range(T + 1)}


def used_by(body: str) -> dict[str, Array]:
    names = set(re.findall(r"\w+", body))
    return {name: value for name, value in constants().items() if name in names}


def unrolled(
    form: str = "torch",
    *,
    rows: str = "x{t} = Gather <axis = 0> (x, at{t}) ",
    order: range = range(T),
    tail: str = "",
    y: str = "float[T, N, H] y",
    inputs: str = f"float[{T}, N, {I}] x, float[N, {H}] h, float[N, {H}] c",
    head: str = "",
    gates: str = "",
    opset: int = 17,
) -> onnx.ModelProto:
    """Returns time steps in this form; step t reads row order[t], and `tail` follows them."""
    body, h, c = head, "h", "c"
    for t in order:
        body += (
            rows.format(t=t, h=h, end=t + 1)
            + (gates or GATES[form]).format(t=t, x=f"x{t}", h=h)
            + CELL.format(t=t, c=c)
        )
        h, c = f"h{t}", f"c{t}"
    body += tail or stacked(0, list(order))
    model = model_from_text(f"g ({inputs}) => ({y}) {{ {body} }}", used_by(body), opset)
    for output in model.graph.output:
        output.type.tensor_type.ClearField("shape")
    return model


def stacked(axis: int, order: list[int]) -> str:
    """Stacks the hidden states along a new axis, as PyTorch and TensorFlow do."""
    lines = "".join(f"u{t} = Unsqueeze(h{t}, {('first', 'd1', 'last')[axis]}) " for t in order)
    return lines + f"y = Concat <axis = {axis}> ({', '.join(f'u{t}' for t in order)})"


def fused(model: onnx.ModelProto, *, x: tuple[int, ...] = (T, N, I), state: bool = True) -> Rewritten:
    """Rewrites the model, checks that its time steps became LSTM nodes, and compares the outputs."""
    result = rewrite(model, [CleanUp(), FuseLstm()])
    assert "LSTM" in result.op_types, result.remarks
    assert not {"Tanh", "Sigmoid", "Gemm", "MatMul"} & set(result.op_types)
    shapes = {i.name: (N, H) for i in model.graph.input if i.name in ("h", "c")} if state else {}
    feeds = {i.name: draw(*shapes.get(i.name, x)) for i in model.graph.input}
    assert_same_outputs(model, result.proto, feeds)
    return result


def codes(model: onnx.ModelProto) -> list[str]:
    result = rewrite(model, [FuseLstm()])
    assert "LSTM" not in result.op_types
    return result.codes()


@pytest.mark.parametrize("form", GATES)
def test_the_forms_of_exporters(form: str) -> None:
    result = fused(unrolled(form))
    assert result.op_types == ["Unsqueeze", "Unsqueeze", "LSTM", "Squeeze"]


@pytest.mark.parametrize(
    ("rows", "x"),
    [
        ("x{t} = Gather <axis = 1> (x, at{t}) ", (N, T, I)),
        ("w{t} = Slice(x, lo{t}, lo{end}, first) x{t} = Squeeze(w{t}, first) ", (T, N, I)),
        ("w{t} = Slice(x, lo{t}, lo{end}, d1) x{t} = Squeeze(w{t}, d1) ", (N, T, I)),
    ],
)
def test_rows_of_one_tensor(rows: str, x: tuple[int, ...]) -> None:
    """A row is the result of Gather, or of Slice and Squeeze; only the second axis needs a Transpose."""
    dims = ", ".join("N" if n == N else str(n) for n in x)
    model = unrolled(inputs=f"float[{dims}] x, float[N, {H}] h, float[N, {H}] c", rows=rows)
    result = fused(model, x=x)
    assert result.op_types.count("Transpose") == (x[0] == N)


def test_rows_of_a_split() -> None:
    parts = ", ".join(f"w{t}" for t in range(T))
    model = unrolled(head=f"{parts} = Split <axis = 0> (x) ", rows="x{t} = Squeeze(w{t}, first) ")
    assert "Split" not in fused(model).op_types


def test_other_inputs_are_stacked() -> None:
    inputs = ", ".join(f"float[N, {I}] x{t}" for t in range(T)) + f", float[N, {H}] h, float[N, {H}] c"
    model = unrolled(inputs=inputs, rows="")
    assert fused(model, x=(N, I)).op_types.count("Concat") == 1


def test_some_rows_of_a_longer_tensor() -> None:
    model = unrolled(inputs=f"float[9, N, {I}] x, float[N, {H}] h, float[N, {H}] c")
    assert "Slice" in fused(model, x=(9, N, I)).op_types


def test_backwards() -> None:
    """Hidden states in the order of the rows are LSTM's output with direction reverse."""
    result = fused(unrolled(order=range(T - 1, -1, -1), tail=stacked(0, list(range(T)))))
    (lstm,) = [n for n in result.proto.graph.node if n.op_type == "LSTM"]
    assert next(a.s for a in lstm.attribute if a.name == "direction") == b"reverse"
    assert "Gather" not in result.op_types


def test_states_in_the_order_of_steps() -> None:
    assert fused(unrolled(order=range(T - 1, -1, -1))).op_types.count("Gather") == 1


@pytest.mark.parametrize("axis", [1, 2])
def test_states_along_other_axes(axis: int) -> None:
    result = fused(unrolled(tail=stacked(axis, list(range(T)))))
    assert result.op_types == ["Unsqueeze", "Unsqueeze", "LSTM", "Squeeze", "Transpose"]


def test_single_states() -> None:
    """Readers of single hidden states, and of the last cell state."""
    tail = f"y = Concat <axis = 1> (h1, h{T - 1}) w = Abs(c{T - 1})"
    result = fused(unrolled(tail=tail, y="float[N, H] y, float[N, H] w, float[N, H] h2"))
    assert [n.name for n in result.proto.graph.output] == ["y", "w", "h2"]


@pytest.mark.parametrize("form", GATES)
@pytest.mark.parametrize("batch", ["N", "3"])
def test_zero_states(form: str, batch: str) -> None:
    """Zeros need no input; with a constant batch, constant folding has replaced the first product by its bias."""
    head = "s = Shape(x) n = Slice(s, d1, last, first) m = Concat <axis = 0> (n, p6) h = ConstantOfShape(m) "
    model = unrolled(form, inputs=f"float[{T}, {batch}, {I}] x", head=head + "c = Identity(h) ")
    result = fused(model, state=False)
    assert result.op_types == ["LSTM", "Squeeze"]


def test_two_layers() -> None:
    """The second layer reads the hidden states of the first, in one loop over the time steps."""
    body, states = "", {1: ("h", "c"), 2: ("h", "c")}
    for t in range(T):
        x = f"xa{t}"
        body += f"{x} = Gather <axis = 0> (x, at{t}) "
        for layer, name in ((1, "a"), (2, "b")):
            h, c = states[layer]
            at, weights = f"{name}{t}", {1: "Wt", 2: "Qt"}[layer]
            body += GATES["torch"].replace("Wt", weights).format(t=at, x=x, h=h) + CELL.format(t=at, c=c)
            states[layer] = f"h{at}", f"c{at}"
            x = f"h{at}"
    inputs = f"float[{T}, N, {I}] x, float[N, {H}] h, float[N, {H}] c"
    model = model_from_text(f"g ({inputs}) => (float[N, {H}] y) {{ {body} y = Abs(hb{T - 1}) }}", used_by(body))
    result = fused(model)
    assert result.op_types.count("LSTM") == 2
    assert "Concat" not in result.op_types


def test_one_step_is_not_faster() -> None:
    inputs = f"float[1, N, {I}] x, float[N, {H}] h, float[N, {H}] c"
    model = unrolled(order=range(1), y="float[N, H] y", tail="y = Abs(h0)", inputs=inputs)
    assert codes(model) == ["NO_GAIN"]
    result = rewrite(model, [FuseLstm()], ignore_cost_model=True)
    assert "LSTM" in result.op_types
    assert_same_outputs(model, result.proto, {"x": draw(1, N, I), "h": draw(N, H), "c": draw(N, H)})


TORCH, KERAS = GATES["torch"], GATES["keras"]
SEQUENCE, STATES = f"float[{T}, N, {I}] x", f"float[N, {H}] h, float[N, {H}] c"
STACK = stacked(0, list(range(T)))


def refused() -> dict[str, onnx.ModelProto]:
    """Returns one model for each code."""
    doubled = unrolled(inputs=f"{SEQUENCE}, {STATES}".replace("float", "double"))
    for tensor in doubled.graph.initializer:
        if tensor.data_type == onnx.TensorProto.FLOAT:
            tensor.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(tensor).astype(float), tensor.name))
    weight = unrolled("keras", inputs=f"{SEQUENCE}, {STATES}, float[{I}, {4 * H}] W")
    branch = f"b () => (float[N, {H}] e) {{ e = Abs(h1) }}"
    twice = f"w = If (q) <then_branch = {branch}, else_branch = {branch.replace('b ()', 'd ()').replace('e', 'i')}>"
    matrix = f"float[{T}, N, 2, {I}] x, float[N, 2, {H}] h, float[N, 2, {H}] c"
    two = "float[T, N, H] y, float[N, H] "
    quantized = KERAS.replace("({x}, W)", "({x}, D)")
    return {
        "NOT_CONSTANT": unrolled(
            "keras", inputs=f"{SEQUENCE}, {STATES}, float[{I}, {4 * H}] U", gates=KERAS.replace(" W)", " U)")
        ),
        "OVERRIDABLE": weight,
        "QUANTIZED": unrolled("keras", head="D = DequantizeLinear(Wq, scale) ", gates=quantized),
        "WRONG_DTYPE": doubled,
        "GRAPH_OUTPUT": unrolled(y=two + "c1"),
        "OTHER_USES": unrolled(tail=STACK + " w = Abs(s2f)", y=two + "w"),
        "ESCAPES": unrolled(tail=STACK + twice, y=two + "w", inputs=f"{SEQUENCE}, {STATES}, bool q"),
        "ATTRIBUTE": unrolled(gates=TORCH.replace("<transB = 1> ({x}", "<transB = 1, alpha = 0.5> ({x}")),
        "UNSUPPORTED_OP": unrolled(
            gates=TORCH.replace("z{t} = Add", "w{t} = Add").replace("i{t}, f", "z{t} = Relu(w{t}) i{t}, f")
        ),
        "WRONG_AXIS": unrolled(gates=TORCH.replace("f{t}, g", "e{t}, g") + "f{t} = Slice(z{t}, first, p12, ax, last) "),
        "WRONG_SHAPE": unrolled(gates=TORCH.replace("Wt, b)", "Wt, b{t})")),
        "UNKNOWN_SHAPE": unrolled(inputs=f"{SEQUENCE}, float[M, {H}] h, float[N, {H}] c"),
        "UNKNOWN_RANK": unrolled(
            inputs=f"{SEQUENCE}, float[N, {H}] h, float[N, {H}] e, int64[K] s", head="c = Reshape(e, s) "
        ),
        "WRONG_RANK": unrolled("keras", inputs=matrix),
        "OPSET": unrolled("keras", opset=6, tail=f"y = Abs(h{T - 1})", y="float[N, H] y"),
    }


REFUSED = refused()


@pytest.mark.parametrize("code", sorted(REFUSED))
def test_refusals(code: str) -> None:
    assert codes(REFUSED[code]) == [code]


def test_inputs_that_depend_on_hidden_states() -> None:
    """A decoder computes each input from the state before, so its steps cannot share one node."""
    start = f"float[N, {H}] x, {STATES}"
    model = unrolled(inputs=start, rows="x{t} = Relu({h}) ")
    assert codes(model) == ["OTHER_USES"]


def test_states_that_are_inputs_themselves() -> None:
    model = unrolled(inputs=f"float[N, {H}] x, {STATES}", rows="", gates=TORCH.replace("{x}", "{h}"))
    assert codes(model) == ["UNSUPPORTED_OP"]
