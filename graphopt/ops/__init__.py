"""Our domain: one table of every operator name that graphopt may emit."""

from __future__ import annotations

from graphopt.ops import fused_attention, group_norm, linear, row_norm, scale_shift, winograd_conv
from graphopt.ops.schema import DOMAIN, DOMAIN_VERSION, OpSpec

OPS: dict[str, OpSpec] = {
    spec.name: spec
    for module in (scale_shift, winograd_conv, fused_attention, group_norm, row_norm, linear)
    for spec in module.SPECS
}

__all__ = ["DOMAIN", "DOMAIN_VERSION", "OPS", "OpSpec"]
