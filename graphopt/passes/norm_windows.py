"""Fuses a window partition into the LayerNorm before it, and the reverse of a partition into the LayerNorm after it.

    windows(norm(X)) = FusedLayerNormIntoWindows(X);  windows(norm(X + R)) = FusedLayerNormAddSumIntoWindows(X, R)
    norm(X + images(R)) = FusedLayerNormAddSumFromWindows(X, R)

`windows` partitions images into windows, and `images` is its inverse.

Why it is legal: the operators are defined by these equations. The pass runs the nodes on row indices and compares the
result with `window_rows`, which defines the operators.

Windowed attention (Z. Liu et al., "Swin Transformer", 2021; A. Kirillov et al., "Segment Anything", 2023) pads images
to whole windows, shifts them cyclically and partitions them; after its last MatMul it reverses this. A norm reads and
writes one row for each token, so reading or writing the rows in another order costs nothing.

Conditions: only the number of images may be unknown; padding is zeros; no other node reads an intermediate value.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from graphopt.forms.row_moves import (
    COPIES,
    MAX_ROWS,
    PADDED,
    VIEWS,
    elements_of,
    images_of,
    is_known,
    moves_to,
    reshaped,
)
from graphopt.graph.build import Builder
from graphopt.graph.editor import Editor
from graphopt.graph.shapes.sizes import ONE, Size
from graphopt.graph.view import (
    attribute_float,
    attribute_int,
    is_read_once,
    producer_of,
    require_input,
    sole_reader,
    use_count,
)
from graphopt.metadata import Numerics
from graphopt.ops import DOMAIN
from graphopt.ops.row_norm import window_rows
from graphopt.ops.schema import Array
from graphopt.passes.base import Pass
from graphopt.remarks import Code, Refusal, became

PAD = "Pad"
Pair = tuple[int, int]


@dataclass(frozen=True)
class Windows:
    """The sizes of an image and of its windows, and the cyclic shift, as (rows, columns)."""

    image: Pair
    window: Pair
    shift: Pair

    @property
    def sizes(self) -> tuple[Pair, Pair, Pair]:
        return self.image, self.window, self.shift

    @property
    def count(self) -> int:
        return -(-self.image[0] // self.window[0]) * -(-self.image[1] // self.window[1])


@dataclass(frozen=True)
class WindowNorm:
    """A norm and the adjacent nodes that move its rows.

    Attributes:
        norm: the norm.
        moves: the nodes that move rows, in topological order, after the norm's output or before its R.
        into: whether the nodes are after the norm (partition) or before it (reverse).
        source: the input of the first node.
        images: the number of images.
        windows: the sizes of the partition.
    """

    norm: ir.Node
    moves: tuple[ir.Node, ...]
    into: bool
    source: ir.Value
    images: Size
    windows: Windows

    @property
    def has_residual(self) -> bool:
        return self.norm.op_type == "FusedLayerNormAddSum"

    @property
    def name(self) -> str:
        return f"FusedLayerNorm{'AddSum' if self.has_residual else ''}{'Into' if self.into else 'From'}Windows"


class NormWindows(Pass[WindowNorm, WindowNorm]):
    name = "norm_windows"
    equation = "windows(norm(X [+ R])) = FusedLayerNorm[AddSum]IntoWindows;  norm(X + images(R)) = ..FromWindows"
    numerics = Numerics.EXACT
    # LayerNormalization is an anchor, because fuse_row_norm keeps it on GPU targets if there is no residual sum.
    anchors = frozenset({(DOMAIN, "FusedLayerNorm"), (DOMAIN, "FusedLayerNormAddSum"), ("", "LayerNormalization")})

    def match(self, node: ir.Node, editor: Editor) -> WindowNorm | None:
        if node.op_type == "LayerNormalization" and not _is_plain(node, editor):
            return None
        first: Refusal | None = None
        for into in (False, True) if node.op_type == "FusedLayerNormAddSum" else (True,):
            try:
                found = _read(node, into, editor)
            except Refusal as refusal:
                first = first or refusal
            else:
                if found is not None:
                    return found
        if first is not None:
            raise first
        return None

    def legal(self, match: WindowNorm, editor: Editor) -> WindowNorm:
        w = match.windows
        if match.has_residual and match.into and any(size % of for size, of in zip(w.image, w.window)):
            raise Refusal(Code.WRONG_SHAPE, f"windows of {w.window} do not divide images of {w.image}", match.norm)
        editor.require_op(match.name, require_input(match.norm, 0), match.norm)
        return match

    def rewrite(self, plan: WindowNorm, editor: Editor) -> str:
        norm, w = plan.norm, plan.windows
        label = norm.name or norm.outputs[0].name or plan.name
        x, *others = (require_input(norm, i) for i in range(len(norm.inputs)))
        builder = Builder(editor, norm, label)
        dims = editor.shapes.dims(x) or ()
        in_images: tuple[Size, ...] = (plan.images, Size.of(w.image[0] * w.image[1]), dims[-1])
        in_windows = (plan.images * Size.of(w.count), Size.of(w.window[0] * w.window[1]), dims[-1])
        if dims == (plan.images, *map(Size.of, w.image), dims[-1]) and not (plan.has_residual and plan.into):
            in_images = dims
        inputs = [reshaped(builder, x, dims, in_images)]
        if plan.has_residual:
            r = others.pop(0)
            inputs.append(
                reshaped(builder, r, dims, in_images) if plan.into
                else reshaped(builder, plan.source, editor.shapes.dims(plan.source), in_windows)
            )  # fmt: skip
        attributes = {"image": w.image, "window": w.window, "shift": w.shift}
        epsilon = attribute_float(norm, "epsilon", 1e-5)
        new = builder.emit(plan.name, inputs + others, {"epsilon": epsilon, **attributes})
        y = plan.moves[-1].outputs[0] if plan.into else norm.outputs[0]
        replaced = [y, *norm.outputs[1:]] if plan.has_residual else [y]
        outputs = {
            old: reshaped(builder, value, in_windows if plan.into and old is y else in_images, editor.shapes.dims(old))
            for old, value in zip(replaced, new.outputs)
        }
        editor.replace([*plan.moves, norm], builder.nodes, outputs, anchor=norm)
        return became(len(plan.moves) + 1, plan.name)


def _read(node: ir.Node, into: bool, editor: Editor) -> WindowNorm | None:
    """Returns the norm with the nodes after it, or before its R, that partition into windows or reverse this.

    Raises:
        Refusal: the nodes move rows to unknown positions or in another order, or there are too many rows.
    """
    last = _last_after(node.outputs[0], editor) if into else producer_of(node.inputs[1], *COPIES, *VIEWS)
    if last is None or last.graph is not node.graph or not is_known(last, editor):
        return None
    source, moves = moves_to(last, editor, PAD)
    D = editor.shapes.last(node.inputs[0])
    if source is None or D is None or D.value is None or not _keep_columns(moves):
        return None
    if not any(n.op_type in COPIES for n in moves):
        return None
    if not (source is node.outputs[0] if into else is_read_once(last.outputs[0])):
        return None
    dims, images = images_of(source, moves, editor)
    elements = elements_of(source, moves, dims, images, editor)
    rows = _rows_of(elements[last.outputs[0]], D.value)
    if rows is None or not rows.size or (not into and (rows == PADDED).any()):
        return None
    count = elements[source].size // D.value if into else rows.size
    if not into:
        back, rows = rows, np.full(elements[source].size // D.value, PADDED)
        rows[back] = np.arange(back.size)
    windows = _windows_of(rows, count)
    if windows is None:
        why = "the nodes neither partition images into windows nor reverse this"
        if rows.size > MAX_ROWS:
            why = f"the windows of an image have {rows.size} rows, which are too many"
        raise Refusal(Code.WRONG_PERM, why, *moves)
    return WindowNorm(node, tuple(moves), into, source, images, windows)


def _is_plain(node: ir.Node, editor: Editor) -> bool:
    """Returns whether FusedLayerNorm can express a LayerNormalization: last axis, one type, scale and bias."""
    x, *parameters = (*node.inputs, None, None)[:3]
    row = (editor.shapes.last(x),)
    types = {editor.dtype(v) for v in (x, *parameters)}
    return (
        editor.shapes.is_last(attribute_int(node, "axis", -1), x)
        and not any(use_count(o) or o.is_graph_output() for o in node.outputs[1:])
        and all(editor.shapes.dims(v) == row for v in parameters)
        and types in ({ir.DataType.FLOAT}, {ir.DataType.FLOAT16})
        and row != (ONE,)
        and attribute_int(node, "stash_type", 1) == 1
    )


def _last_after(y: ir.Value, editor: Editor) -> ir.Node | None:
    """Follows the nodes after y that move elements or pad; returns the last one, or None."""
    last = None
    while (node := sole_reader(y, *COPIES, *VIEWS, PAD)) is not None and node.inputs[0] is y and is_known(node, editor):
        last, y = node, node.outputs[0]
    return last


def _keep_columns(moves: list[ir.Node]) -> bool:
    """Returns whether no Transpose moves the last axis. This cheap test excludes most nodes after norms."""
    perms = [n.attributes.get("perm") for n in moves if n.op_type == "Transpose"]
    return all(perm is not None and perm.as_ints()[-1] == len(perm.as_ints()) - 1 for perm in perms)


def _rows_of(elements: Array, D: int) -> Array | None:
    """Returns the source row of each row of D elements, or PADDED; None if the nodes split rows."""
    if elements.size % D:
        return None
    rows = elements.reshape(-1, D)
    padded = rows[:, :1] == PADDED
    expected = np.where(padded, PADDED, rows[:, :1] + np.arange(D))
    if not np.array_equal(rows, expected) or (rows[:, 0][~padded[:, 0]] % D).any():
        return None
    return np.where(padded[:, 0], PADDED, rows[:, 0] // D)


def _windows_of(rows: Array, count: int) -> Windows | None:
    """Returns the image, window and shift sizes for which `window_rows` gives these (at most MAX_ROWS) rows, or None.

    Images have `count` rows.
    """
    if rows[0] == PADDED or rows.size > MAX_ROWS:
        return None
    widths = _divisors(rows.size)
    for W in _divisors(count):
        H, (down, right) = count // W, divmod(int(rows[0]), W)
        for w in widths:
            if w > W:
                break
            padded_width = -(-W // w) * w
            columns = (right + np.arange(w)) % padded_width
            first_rows = np.where(columns < W, down * W + columns, PADDED)
            if rows.size % padded_width or not np.array_equal(rows[:w], first_rows):
                continue
            for h in _divisors(rows.size // padded_width):
                windows = Windows((H, W), (h, w), (down, right))
                fits = h <= H and windows.count * h * w == rows.size
                if fits and np.array_equal(window_rows(*windows.sizes).reshape(-1), rows):
                    return windows
    return None


def _divisors(n: int) -> list[int]:
    return [d for d in range(1, n + 1) if n % d == 0]
