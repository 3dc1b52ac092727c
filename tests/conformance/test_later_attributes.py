"""Inputs and attributes added to ONNX's operators since opset 22.

A runtime that ignores an addition hides that we ignore it as well.
"""

from __future__ import annotations

import itertools

import onnx

from graphopt.optimizer import NEWEST_KNOWN_OPSET

# Operator, attribute or input -> its treatment here.
CONSIDERED = {
    ("Attention", "nonpad_kv_seqlen"): "refused by passes and by the provider",
    ("Attention", "left_window_size"): "Window of FusedAttention; read by the provider",
    ("Attention", "right_window_size"): "as on the left",
    ("Cast", "round_mode"): "for float8e8m0, which nothing here computes",
    ("CastLike", "round_mode"): "as of Cast",
    ("DequantizeLinear", "output_dtype"): "read by the provider; passes leave quantized numbers",
    ("QuantizeLinear", "precision"): "refused by the provider but for float; passes leave quantized numbers",
}


def test_additions_to_operators_are_classified() -> None:
    """Before raising NEWEST_KNOWN_OPSET, classify each addition as read, refused, or irrelevant."""
    versions: dict[str, list[onnx.defs.OpSchema]] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        if schema.domain == "" and schema.since_version <= NEWEST_KNOWN_OPSET:
            versions.setdefault(schema.name, []).append(schema)
    added = set()
    for name, schemas in versions.items():
        for old, new in itertools.pairwise(sorted(schemas, key=lambda s: s.since_version)):
            if new.since_version > 22:
                more = {*new.attributes} - {*old.attributes} | {i.name for i in new.inputs[len(old.inputs) :]}
                added |= {(name, what) for what in more}
    assert added == set(CONSIDERED)
