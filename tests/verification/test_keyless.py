"""If two exports differ only in queries without a visible key, `verify` says so in a note; for a fault it does not."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from graphopt.verification.verify import hides_all, hides_all_before, verify
from tests.rewriting import model_from_text

CAUSAL = """n = Shape <start: int = 1, end: int = 2> (x) square = Concat <axis: int = 0> (n, n)
    zeros = ConstantOfShape(square) ones = Add(zeros, unit) lower = Trilu <upper: int = 0> (ones)
    past = Cast <to: int = 9> (lower) seen = And(kept, past)"""


def attention(seen: str, last: str = "p = Identity(w)", **changed: float) -> onnx.ModelProto:
    """Returns self-attention over x. A query without a visible key gets the mean of all rows, or what `last` gives."""
    numbers = {"low": np.finfo(np.float32).min, "none": 0.0, "unit": 1.0} | changed
    constants = {name: np.array(number, np.float32) for name, number in numbers.items()}
    text = f"""g (float[B, S, 8] x, int64[B, S] attention_mask) => (float[B, S, 8] y) {{
        bits = Cast <to: int = 9> (attention_mask) kept = Unsqueeze(bits, one) {seen}
        t = Transpose <perm: ints = [0, 2, 1]> (x) s = MatMul(x, t) h = Where(seen, s, low) w = Softmax(h)
        {last} y = MatMul(p, x) }}"""
    return model_from_text(text, constants | {"one": np.array([1])})


@pytest.mark.once
@pytest.mark.parametrize(
    ("seen", "where"),
    [
        ("seen = Identity(kept)", "only where 'attention_mask' hides every key:"),
        (CAUSAL, "only where 'attention_mask' hides every key up to the query:"),
    ],
)
def test_queries_without_a_key(seen: str, where: str) -> None:
    guarded = "p = Where(seen, w, none)"
    report = verify(attention(seen), attention(seen, guarded))
    assert not report and any(where in note for note in report.notes), report.notes
    # A fault in all queries, and a fault in padded sequences: the mask value hides too little.
    for fault in (attention(seen, guarded, none=0.01), attention(seen, low=-3.0)):
        report = verify(attention(seen), fault)
        assert not report and not any("hides every key" in note for note in report.notes), report.notes


def test_zeros_in_a_row_without_a_key_are_named() -> None:
    """The mask adds -1e9 to the scores: if it hides every key, BEFORE returns an average of all rows."""
    graph = """g (float[B, S, 8] x, int64[B, S] attention_mask) => (float[B, 8] y) {{
        kept = Cast<to = 1>(attention_mask)  hidden = Sub(one, kept)  bias = Mul(hidden, low)
        column = MatMul(x, v)  score = Squeeze(column, last)  sum = Add(score, bias)  w = Softmax<axis = 1>(sum)
        rows = Unsqueeze(w, last)  weighted = Mul(rows, x)  pooled = ReduceSum<keepdims = 0>(weighted, middle)  {}
    }}"""
    constants = {
        "one": np.float32(1),
        "low": np.float32(-1e9),
        "v": np.random.default_rng(0).standard_normal((8, 1)).astype(np.float32),
        "last": np.array([2]),
        "middle": np.array([1]),
    }
    guarded = "count = ReduceMax(kept, middle)  y = Mul(pooled, count)"
    before = model_from_text(graph.format("y = Identity(pooled)"), constants, opset=18)
    after = model_from_text(graph.format(guarded), constants, opset=18)
    report = verify(before, after)
    assert not report, report.summary
    assert any("differ only where 'attention_mask' hides every key" in note for note in report.notes), report.notes


def test_sequences_are_not_searched_for_hidden_keys() -> None:
    """The arrays of a sequence have different shapes and no common query axis."""
    before, after = (attention("seen = Identity(kept)", low=low) for low in (-1e4, -3.0))
    for model in (before, after):
        model.graph.node.append(onnx.helper.make_node("ReduceSum", ["y"], ["sum"]))
        model.graph.node.append(onnx.helper.make_node("SequenceConstruct", ["y", "sum"], ["both"]))
        model.graph.output.append(onnx.helper.make_tensor_sequence_value_info("both", onnx.TensorProto.FLOAT, None))
    report = verify(before, after)
    assert not report and not any("hides every key" in note for note in report.notes), report.notes


def test_queries_without_visible_keys_of_a_mask() -> None:
    kept = np.array([[1, 1, 0], [0, 0, 0], [0, 1, 1]])
    assert hides_all(kept).tolist() == [False, True, False]
    assert hides_all_before(kept).tolist() == [[False] * 3, [True] * 3, [True, False, False]]
    added = np.where(kept, 0, -1e4).astype(np.float32)[:, None, None, :]
    assert hides_all(added).tolist() == [[False], [True], [False]]
    of_queries = np.repeat(kept[:, None], 2, axis=1).astype(bool)
    assert hides_all(of_queries).tolist() == [[False] * 2, [True] * 2, [False] * 2]
