"""The inputs that `verify` would try on a model, made without running it."""

from __future__ import annotations

import onnx

from graphopt.inputs.plan import Allowance, Case, InputOptions, plan


def make_cases(model: onnx.ModelProto, seed: int) -> list[Case]:
    """The cases of a model that accepts all of them; equal seeds give equal cases."""
    found: list[Case] = []

    def accepts(case: Case) -> bool:
        found.append(case)
        return True

    plan(model, InputOptions(seed), accepts, Allowance())
    return found
