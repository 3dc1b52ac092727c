"""A module of PyTorch with its inputs, as scripts/export.py writes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch


@dataclass
class Case:
    """A module with its inputs.

    Attributes:
        module: takes its inputs by position, in the order of `inputs`.
        inputs: name -> tensor.
        axes: name -> {axis: symbol}; axes with the same symbol have the same size.

    """

    module: torch.nn.Module
    inputs: dict[str, torch.Tensor]
    axes: Mapping[str, Mapping[int, str]] = field(default_factory=dict)


class Call(torch.nn.Module):  # type: ignore[misc]
    """A module that passes itself and its inputs to a function, and owns the modules that the function uses."""

    def __init__(self, function: Callable[..., Any], **modules: torch.nn.Module) -> None:
        super().__init__()
        self.function = function
        for name, module in modules.items():
            setattr(self, name, module)

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.function(self, *inputs)


def wrap(network: torch.nn.Module, names: Sequence[str], outputs: Sequence[str], **fixed: Any) -> Call:
    """Returns a module that takes inputs by position and returns the named outputs of a transformers model."""

    def call(self: Any, *inputs: torch.Tensor) -> Any:
        result = self.network(**dict(zip(names, inputs)), **fixed)
        found = tuple(getattr(result, name) for name in outputs)
        return found if len(found) > 1 else found[0]

    return Call(call, network=network)
