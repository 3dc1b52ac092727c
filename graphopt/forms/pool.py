"""MaxPools that our operators can compute: over two axes, without indices, with explicit pads."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from graphopt.graph.view import attribute_int, attribute_ints

Window = Mapping[str, tuple[int, ...]]


def window_of(pool: ir.Node) -> Window | None:
    """Returns the attributes of a MaxPool for our operators.

    None if it has an output of indices, ceil_mode or auto_pad SAME, or does not have two spatial axes.
    """
    padding = pool.attributes.get_string("auto_pad", "NOTSET")
    if any(o.name for o in pool.outputs[1:]) or attribute_int(pool, "ceil_mode", 0):
        return None
    if padding not in ("NOTSET", "VALID"):
        return None
    window = {
        "kernel_shape": attribute_ints(pool, "kernel_shape", ()),
        "pads": attribute_ints(pool, "pads", (0,) * 4) if padding == "NOTSET" else (0,) * 4,
        "strides": attribute_ints(pool, "strides", (1, 1)),
        "dilations": attribute_ints(pool, "dilations", (1, 1)),
    }
    return window if [len(numbers) for numbers in window.values()] == [2, 4, 2, 2] else None
