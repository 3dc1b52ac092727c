"""Writes a folder for running and checking the AMD machine code of every GPU kernel without this repository.

    python scripts/amd_cases.py OUT [ARCH ...]

Without ARCH, uses the checked architectures of the table (native/device/architectures.h) that have matrix units.
OUT/manifest.json contains the cases. OUT/<arch>/*.co are the code objects (the files that the library contains), and
OUT/<case>/*.npy the buffers. A case is a list of launches with their arguments, for an emulator of the instruction set
or a bare HIP module loader. Fails if a kernel in a code object has fewer than eight cases on an architecture.

Members of a case:

    buffers   by name; `file` has the initial contents; `fill` nan means NaN, or bytes of 0xff without a dtype
    launches  in order; a kernel is in the case's `code_object`, unless its launch names another one
    expect    for each output: `file` has the float64 reference, rounded to the output's dtype; the output must satisfy
              max |got - expected| <= tol RMS(expected), with NaN and infinities at the same positions
"""

from __future__ import annotations

import json
import shutil
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

from tests.hip.architectures import checked, has_matrix, only_matrix
from tests.hip.case import Case
from tests.hip.code_objects import build_code_objects, disagreement, kernels, parameters
from tests.hip.harness import ROOT, Harness, Plan
from tests.hip.registry import all_cases

LEAST_CASES = 8
MOST_WORKSPACE = 64 << 20


def write_buffers(case: Case, folder: Path) -> None:
    folder.mkdir(parents=True)
    for i, x in enumerate(case.inputs):
        np.save(folder / f"in{i}.npy", x)
    for i, y in enumerate(case.outputs()):
        np.save(folder / f"out{i}.npy", y)


def plan_of(case: Case, arch: str, harness: Harness, object_of: dict[str, str]) -> Plan | None:
    """Returns the plan of a case; None if the architecture has no code, or no matrix units, for one of its kernels.

    Raises:
        RuntimeError: the plan refuses the case for another reason.
    """
    try:
        return case.plan(harness, harness.typical_facts(arch))
    except RuntimeError:
        kernels = [launch["kernel"] for launch in case.plan(harness, harness.typical_facts("cpu64")).launches]
        if all(kernel in object_of and (has_matrix(arch, half=True) or not only_matrix(kernel)) for kernel in kernels):
            raise
        return None


def entry(case: Case, arch: str, harness: Harness, object_of: dict[str, str]) -> dict[str, Any] | None:
    """Returns a case of the manifest, or None if it has no launches; `object_of`: kernel -> code object."""
    facts = harness.typical_facts(arch)
    plan = plan_of(case, arch, harness, object_of)
    if plan is None:
        return None
    launches = list(plan.launches)
    buffers: dict[str, Any] = {f"in{i}": {"file": f"{case.name}/in{i}.npy"} for i in range(len(case.inputs))}
    for i, y in enumerate(case.outputs()):
        buffers[f"out{i}"] = {"shape": list(y.shape), "dtype": str(y.dtype), "fill": "nan"}
    for i, size in enumerate(plan.workspace):
        if size > MOST_WORKSPACE:
            raise SystemExit(f"{case.name}: a workspace of {size} bytes is too large for a case")
        buffers[f"ws{i}"] = {"bytes": size, "fill": "nan"}
    if case.prepare is not None:
        prepare = case.prepare(harness, facts)
        launches = prepare.launches + launches
        buffers["weights"] = {"bytes": prepare.weights, "fill": "nan"}
    if any("offset" in argument for launch in launches for argument in launch["args"]):
        raise SystemExit(f"{case.name}: a manifest has no pointers into buffers")
    if not launches:
        return None
    first = object_of[launches[0]["kernel"]]
    for launch in launches:
        if object_of[launch["kernel"]] != first:
            launch["code_object"] = f"{arch}/{object_of[launch['kernel']]}"
    return {
        "name": f"{case.name}-{arch}",
        "op": case.op,
        "dtype": str(case.dtypes[0]),
        "arch": arch,
        "code_object": f"{arch}/{first}",
        "buffers": buffers,
        "launches": launches,
        "expect": {
            f"out{i}": {"file": f"{case.name}/out{i}.npy", "tol": case.tolerance} for i in range(len(case.expected))
        },
    }


def main() -> int:
    if len(sys.argv) < 2:
        print(__doc__)
        return 2
    out, archs = Path(sys.argv[1]), sys.argv[2:] or [a for a in checked() if has_matrix(a, half=True)]
    out.mkdir(parents=True, exist_ok=False)
    objects = build_code_objects(archs)
    harness = Harness(ROOT / "build" / "amd" / "device" / "libgpu_harness.so")
    cases = list(all_cases())
    names = [case.name for case in cases]
    if len(set(names)) != len(names):
        raise SystemExit(f"several cases have the same name: {sorted({n for n in names if names.count(n) > 1})}")
    for case in cases:
        write_buffers(case, out / case.name)
    entries = []
    failures = []
    for arch in archs:
        (out / arch).mkdir()
        object_of: dict[str, str] = {}
        parameters_of = parameters(objects[arch])
        for path in objects[arch]:
            shutil.copy(path, out / arch / path.name)
            object_of |= dict.fromkeys(kernels(path), path.name)
        shapes: dict[str, set[str]] = defaultdict(set)
        for case in cases:
            made = entry(case, arch, harness, object_of)
            if made is None:
                continue
            entries.append(made)
            for launch in made["launches"]:
                wrong = disagreement(launch, parameters_of[launch["kernel"]])
                if wrong:
                    raise SystemExit(f"{case.name}-{arch}: {wrong}")
                # For single elements the value, not the shape, distinguishes cases.
                inputs = [x.tolist() if x.size == 1 else list(x.shape) for x in case.inputs]
                shapes[launch["kernel"]].add(json.dumps([launch["args"], inputs], default=str))
        for kernel in object_of:
            is_used = has_matrix(arch, half=True) or not only_matrix(kernel)
            if is_used and len(shapes[kernel]) < LEAST_CASES:
                failures.append(f"{arch}: {kernel} has {len(shapes[kernel])} different cases")
    (out / "manifest.json").write_text(json.dumps({"format": 1, "cases": entries}, indent=1))
    print(f"{len(entries)} cases of {len(cases)} shapes, {len(archs)} architectures: {out / 'manifest.json'}")
    print(*failures, sep="\n")
    return int(bool(failures))


if __name__ == "__main__":
    sys.exit(main())
