"""Kernels that read a slice of a tensor in place: Q, K and V after one layer for all three."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor

import numpy as np
import pytest

from graphopt.ops import DOMAIN
from tests.hip.case import signed
from tests.provider.test_regions import Feeds, both
from tests.rewriting import model_from_text

S, N, D = 5, 4, 16
HEADS_FIRST = "q_perm = [0, 1, 2, 3], k_perm = [0, 1, 3, 2], v_perm = [0, 1, 2, 3], o_perm = [0, 2, 1, 3]"
ATTENTION = f"y = com.graphopt.FusedAttention<scale = 0.25, {HEADS_FIRST}>(q, k, v)"
SQUEEZED = """a = Slice(p, i0, i1, axis)  b = Slice(p, i1, i2, axis)  c = Slice(p, last, end, axis)
    q = Squeeze(a, axis)  k = Squeeze(b, axis)  v = Squeeze(c, axis)"""

# name: nodes over `packed` [b, S, 3, N, D], the number of replaced nodes
GRAPHS: dict[str, tuple[str, int]] = {
    "slices": (f"p = Transpose<perm = [2, 0, 3, 1, 4]>(packed)  {SQUEEZED}  {ATTENTION}", 1),
    "gathers": (
        f"""p = Transpose<perm = [2, 0, 3, 1, 4]>(packed)
            q = Gather<axis = 0>(p, g0)  k = Gather<axis = 0>(p, g1)  v = Gather<axis = 0>(p, g2)  {ATTENTION}""",
        1,
    ),
    "split": (
        f"""p = Transpose<perm = [2, 0, 3, 1, 4]>(packed)  a, b, c = Split<axis = 0, num_outputs = 3>(p)
            q = Squeeze(a, axis)  k = Squeeze(b, axis)  v = Squeeze(c, axis)  {ATTENTION}""",
        1,
    ),
    # The Transpose has another reader.
    "scaled": (
        f"""p = Transpose<perm = [2, 0, 3, 1, 4]>(packed)  d = Gather<axis = 0>(p, g0)  q = Abs(d)
            k = Gather<axis = 0>(p, g1)  v = Gather<axis = 0>(p, g2)  {ATTENTION}""",
        1,
    ),
    # The Transpose moves the last axis of V, which is then a slice of its result.
    "moved": (
        """p = Transpose<perm = [2, 0, 3, 4, 1]>(packed)
            q = Gather<axis = 0>(p, g0)  k = Gather<axis = 0>(p, g1)  v = Gather<axis = 0>(p, g2)
            y = com.graphopt.FusedAttention<scale = 0.25, q_perm = [0, 1, 3, 2], k_perm = [0, 1, 2, 3],
                                            v_perm = [0, 1, 3, 2], o_perm = [0, 2, 1, 3]>(q, k, v)""",
        1,
    ),
    "rotated": (
        """q = Gather<axis = 2>(packed, g0)  k = Gather<axis = 2>(packed, g1)  v = Gather<axis = 2>(packed, g2)
            r = com.graphopt.FusedRotary<perm = [0, 2, 1, 3]>(q, cos, sin)
            t = com.graphopt.FusedRotary<perm = [0, 2, 1, 3]>(k, cos, sin)
            y = com.graphopt.FusedAttention<scale = 0.25, q_perm = [0, 1, 2, 3], k_perm = [0, 1, 3, 2],
                                            v_perm = [0, 2, 1, 3], o_perm = [0, 2, 1, 3]>(r, t, v)""",
        3,
    ),
    # Parts of the last axis.
    "parts": (
        """f = Reshape(packed, flat)  a, b, c = Split<axis = -1, num_outputs = 3>(f)
            q = Reshape(a, heads)  k = Reshape(b, heads)  d = Reshape(c, other)  v = Reshape(d, heads)
            y = com.graphopt.FusedAttention<scale = 0.25, q_perm = [0, 2, 1, 3], k_perm = [0, 2, 3, 1],
                                            v_perm = [0, 2, 1, 3], o_perm = [0, 2, 1, 3]>(q, k, v)""",
        1,
    ),
    "slices_of_last_axis": (
        """f = Reshape(packed, flat)  a = Slice(f, s0, s1, minus)  b = Slice(f, s1, s2, minus)
            q = Reshape(a, heads)  k = Reshape(b, heads)
            y = com.graphopt.FusedAttention<scale = 0.25, q_perm = [0, 2, 1, 3], k_perm = [0, 2, 3, 1],
                                            v_perm = [0, 2, 1, 3], o_perm = [0, 2, 1, 3]>(q, k, q)""",
        1,
    ),
    # A Slice between two parts.
    "no_part": (
        "f = Reshape(packed, flat)  a = Slice(f, i1, s3, minus)  q = Reshape(a, heads)  "
        "y = com.graphopt.FusedRotary<perm = [0, 1, 2, 3]>(q, cos16, cos16)",
        0,
    ),
    # One index of the last axis.
    "last_axis": (
        "d = Gather<axis = 4>(packed, g1)  y = com.graphopt.FusedRotary<perm = [0, 2, 1, 3]>(d, cos4, cos4)",
        0,
    ),
}


@pytest.mark.parametrize("name", list(GRAPHS))
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_slices_are_read_in_place(name: str, dtype: type, worker: ProcessPoolExecutor) -> None:
    nodes, replaced = GRAPHS[name]
    rng = np.random.default_rng(0)
    kind = "float" if dtype == np.float32 else "float16"
    model = model_from_text(
        f"g ({kind}[b, s, 3, {N}, {D}] x) => ({kind}[c, t, n, d] y) {{ packed = Neg(x)  {nodes} }}",
        {
            **{f"i{i}": np.array([i]) for i in range(3)},
            **{f"g{i}": np.array(i - 3 if i == 1 else i) for i in range(3)},
            "last": np.array([2]),
            "end": np.array([3]),
            "axis": np.array([0]),
            **{name: rng.normal(size=(S, D)).astype(dtype) for name in ("cos", "sin")},
            "cos4": rng.normal(size=N).astype(dtype),
            "cos16": rng.normal(size=D).astype(dtype),
            "flat": np.array([0, 0, -1]),
            "heads": np.array([-1, S, N, D]),
            "other": np.array([-1, N * D]),
            **{f"s{i}": np.array([i * N * D]) for i in range(3)},
            "s3": np.array([N * D + 1]),
            "minus": np.array([-1]),
        },
        opset=18,
        check=False,
    )
    model.opset_import.add(domain=DOMAIN, version=1)
    feeds: list[Feeds] = [{"x": signed(rng, batch, S, 3, N, D, dtype=dtype)} for batch in (2, 2, 1)]
    same, events = worker.submit(both, model.SerializeToString(), feeds, {}).result()
    assert same
    assert events.get("fused", 0) == replaced
