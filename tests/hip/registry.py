"""All cases. An operator's cases are in its own module."""

from __future__ import annotations

from collections.abc import Iterator

from tests.hip import (
    convolution_cases,
    elementwise_cases,
    fused_attention_cases,
    group_norm_cases,
    linear_cases,
    movement_cases,
    product_cases,
    reduction_cases,
    row_norm_cases,
    scale_shift_cases,
    tile_cases,
    winograd_conv_cases,
)
from tests.hip.case import Case

MODULES = (
    tile_cases,
    scale_shift_cases,
    group_norm_cases,
    row_norm_cases,
    winograd_conv_cases,
    elementwise_cases,
    movement_cases,
    reduction_cases,
    product_cases,
    convolution_cases,
    fused_attention_cases,
    linear_cases,
)


def all_cases() -> Iterator[Case]:
    for module in MODULES:
        yield from module.cases()
