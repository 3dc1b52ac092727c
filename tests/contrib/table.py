"""The table of contrib operators in docs/contrib.md, and which of them runtimes have kernels for."""

from __future__ import annotations

from graphopt.contrib import CONTRIB, ContribOp

# No runtime has a CPU kernel: definitions are compared only with references, which are written from the schema's text.
WITHOUT_KERNEL = frozenset(
    "BiasAdd BiasSplitGelu GroupNorm NhwcConv PackedAttention PackedMultiHeadAttention QLinearReduceMean "
    "SkipGroupNorm".split()
)
# onnxruntime 1.22 has no CPU kernel, or computes something else with it (the operator's file says what).
WITHOUT_KERNEL_IN_1_22 = frozenset({"QLinearSoftmax"})
# Operators that are kept on GPUs and have no kernel in our provider, with the reason.
WITHOUT_OURS = {"QLinearReduceMean": "the runtime has only a schema, so no file with it runs; `lower` replaces it"}
# Operators without a definition, with the reason.
UNDEFINED = {"GemmFloat8": "no matrix multiplication of the standard takes its types"}


def without_kernel(runtime: tuple[int, ...]) -> frozenset[str]:
    """Returns the operators whose definitions are compared only with the reference on this runtime."""
    return WITHOUT_KERNEL if runtime >= (1, 31) else WITHOUT_KERNEL | WITHOUT_KERNEL_IN_1_22


def kernels(op: ContribOp) -> str:
    """Returns which of the tested releases have a CPU kernel, which the definition is compared with."""
    if op.name in WITHOUT_KERNEL:
        return "none"
    return "1.32.0" if op.name in WITHOUT_KERNEL_IN_1_22 else "both"


def on_provider(op: ContribOp) -> str:
    """Returns the kernel that runs the operator on our provider."""
    if op.on_provider:
        return f"operators/{op.on_provider}"
    if not op.kept_on_gpu:
        return "through its definition"
    return f"no kernel: {WITHOUT_OURS[op.name]}"


def treatment(reason: str) -> str:
    """Returns whether `optimize` keeps a node, and why."""
    return f"kept: {reason}" if reason else "replaced"


def rows() -> list[str]:
    """Returns a line of Markdown for each operator, or for all operators with equal columns."""
    names: dict[tuple[str, ...], list[str]] = {}
    for op in sorted(CONTRIB.values(), key=lambda op: op.name):
        cells = (
            f"contrib/{op.define.__module__.rpartition('.')[2]}.py",
            op.form,
            treatment(op.kept_on_cpu),
            "kept: the same" if op.kept_on_gpu == op.kept_on_cpu != "" else treatment(op.kept_on_gpu),
            on_provider(op),
            kernels(op),
            op.refuses,
        )
        names.setdefault(cells, []).append(op.name)
    lines = ["| " + " | ".join((", ".join(alike), *cells)) + " |" for cells, alike in names.items()]
    lines += [f"| {name} | | | kept | kept | no kernel | none | all: {why} |" for name, why in UNDEFINED.items()]
    return sorted(lines)
