"""What must hold of every graph: the invariants, and equal numbers."""

from __future__ import annotations

import numpy as np
import onnx

import graphopt
from graphopt.ops import DOMAIN
from graphopt.passes import Numerics
from graphopt.verify.compare import difference
from graphopt.verify.run import perturbed
from graphopt.verify.tolerances import LIMITS, SENSITIVITY_FACTOR
from tests.fuzz.generator import generate
from tests.rewriting import Array, run


# Values are of the order of one. The norm of a constant is nothing but rounding, whatever its own size.
NOISE = 2e-6


def check(seed: int) -> bool:
    """Checks the graph of one seed; False when the runtime itself refuses it.

    Raises:
        AssertionError: a wrong number, a changed interface, or a second run that finds something.
    """
    generated = generate(seed)
    model, feeds = generated.model, generated.feeds
    try:
        onnx.checker.check_model(model)
        want = run(model, feeds)
    except Exception:  # not a model that this runtime can run
        return False
    before = model.SerializeToString(deterministic=True)
    after, _ = graphopt.optimize(model, target="cpu", all_sites=True, check=True)
    assert model.SerializeToString(deterministic=True) == before, f"seed {seed}: the argument changed"
    again, _ = graphopt.optimize(after, target="cpu", all_sites=True)
    assert again.SerializeToString(deterministic=True) == after.SerializeToString(deterministic=True), (
        f"seed {seed}: a second run changes something"
    )
    ours = any(n.domain == DOMAIN for n in after.graph.node)
    for library in (False, True) if ours else (False,):
        for i, got in enumerate(run(after, feeds, library=library)):
            structure, max_abs, moved, _, _ = difference(want[i], got)
            assert not structure, f"seed {seed}, output {i}, library {library}: {structure}"
            if max_abs > NOISE and moved > LIMITS[Numerics.APPROXIMATE if library else Numerics.REASSOCIATED]:
                limit = SENSITIVITY_FACTOR * _sensitivity(model, feeds, want[i], i)
                assert moved <= limit, (
                    f"seed {seed}, output {i}, library {library}: {moved:.3g} of RMS, limit {limit:.3g}"
                )
    return True


def _sensitivity(model: onnx.ModelProto, feeds: dict[str, Array], want: Array, output: int) -> float:
    moved = [difference(want, run(perturbed(model, s), feeds)[output])[2] for s in (1, 2, 3)]
    nudged = {k: np.nextafter(v, np.float32(np.inf)) for k, v in feeds.items()}
    return max(*moved, difference(want, run(model, nudged)[output])[2])
