"""Optimized models in files, with inputs and with the outputs of the original model on the CPU.

`prepare_each` writes them in parallel for scripts/gpu_soak.py and scripts/gpu_zoo.py, with one process per core. The
ending of a model's name selects its source: -small and -whole (the zoo), -torchscript17 and -dynamo20
(pytorch/published.py), or -BATCH-foreign (pytorch/foreign.py).
"""

from __future__ import annotations

import faulthandler
import functools
import multiprocessing
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

import graphopt
from graphopt.runtime.discovery import CPU
from models import ZOO, feeds_of

Array = npt.NDArray[Any]
Feeds = dict[str, Array]

# Limits of the largest error of an output, relative to its root mean square. They only detect outputs that are
# completely wrong. scripts/gpu_check.py and scripts/gpu_session.py have the limits of kernels and models.
ERROR_LIMIT = {"float32": 1e-3, "float16": 6e-2}
# Batch and sequence length for the zoo's models.
SIZES = ((1, 16), (3, 32), (8, 24))

ZOO_WHOLE = ("resnet50", "bert", "unet", "sd_block")
# Names in models/pytorch/published.py.
EXPORTED = (
    "bert_tagger", "deberta_classifier", "gpt2_with_past", "llama_with_past", "qwen3_with_past", "t5_encoder",
    "t5_decoder_with_past", "whisper_encoder", "whisper_decoder_with_past", "hifigan", "encodec_decoder",
    "istft_vocoder", "swin_classifier", "convnext", "segformer", "mobilevit", "sam_encoder", "depth_anything",
    "efficientnet", "mobilenet_v3", "shufflenet", "regnet", "tiny_vit", "edgenext", "repvit", "ocr_detector",
    "modernbert", "gemma2", "swinv2",
)  # fmt: skip
TORCHVISION = ("resnext50_32x4d", "swin_t", "convnext_tiny", "efficientnet_b0")
TRANSFORMERS = ("distilbert_base", "whisper_base_encoder")


def relative_error(got: Array, want: Array) -> float:
    """Returns the largest absolute error of the finite elements, over the root mean square of `want` there."""
    finite = np.isfinite(want) & np.isfinite(got)
    x, y = want[finite].astype(np.float64), got[finite].astype(np.float64)
    scale = float(np.sqrt(np.mean(x**2))) if x.size else 0.0
    return float(np.abs(x - y).max()) / (scale or 1.0) if x.size else 0.0


def names(small: bool) -> list[str]:
    """Returns the names of the models, the slowest to prepare first."""
    zoo = [f"{name}-small" for name in ZOO]
    if small:
        return zoo
    whole = [f"{name}-whole" for name in ZOO_WHOLE]
    large = [f"{name}-dynamo20" for name in (*TRANSFORMERS, *TORCHVISION)]
    return [*large, *whole, *(f"{name}-torchscript17" for name in EXPORTED), *zoo]


def _exported(name: str, folder: Path) -> tuple[onnx.ModelProto, list[Feeds]]:
    """Exports a model, unless the folder has it, and returns it with inputs of two sizes."""
    import torch

    from models.pytorch.export import export
    from models.pytorch.published import MODELS

    torch.set_num_threads(1)
    published, exporter = name.split("-")
    file = folder / f"{name}.onnx"
    if not file.exists():
        export(MODELS[published], exporter, file)
    model, arrays = onnx.load(file), np.load(file.with_suffix(".npz"))
    read = {i.name for i in model.graph.input}
    return model, [{k[2:]: arrays[k] for k in arrays if k[:2] == f"{i}:" and k[2:] in read} for i in range(2)]


def _foreign(name: str, folder: Path) -> tuple[onnx.ModelProto, list[Feeds]]:
    """Exports NAME-BATCH-foreign, a model of models/pytorch/foreign.py, and returns it with its inputs."""
    import torch

    from models.pytorch.export import write
    from models.pytorch.foreign import MODELS

    torch.set_num_threads(1)
    published, batch, _ = name.split("-")
    case, file = MODELS[published](int(batch)), folder / f"{name}.onnx"
    if not file.exists():
        write(case, "dynamo20", file)
    return onnx.load(file), [{key: x.numpy() for key, x in case.inputs.items()}]


def _of_zoo(name: str) -> tuple[onnx.ModelProto, list[Feeds]]:
    published, kind = name.split("-")
    model = ZOO[published](small=kind == "small", dynamic=True)
    sizes = SIZES if kind == "small" else SIZES[:2]
    return model, [feeds_of(model, batch, length) for batch, length in sizes]


def _hide_gpus() -> None:
    """Keeps an export from using a GPU."""
    os.environ["CUDA_VISIBLE_DEVICES"] = os.environ["HIP_VISIBLE_DEVICES"] = ""


def prepare(name: str, exports: Path, folder: Path, target: str) -> str:
    """Writes the optimized models in both precisions, inputs, and outputs of the CPU, unless the folder has them.

    Returns:
        an error or "".
    """
    import onnxruntime as ort

    faulthandler.enable()
    foreign = name.endswith("-foreign")
    if (folder / f"{name}.npz").exists():
        return ""
    try:
        if foreign:
            model, inputs = _foreign(name, exports)
        else:
            model, inputs = _of_zoo(name) if name.endswith(("-small", "-whole")) else _exported(name, exports)
        options = ort.SessionOptions()
        options.intra_op_num_threads = 2
        options.log_severity_level = 3
        session = ort.InferenceSession(model.SerializeToString(), options, providers=[CPU])
        arrays: Feeds = {}
        for i, feeds in enumerate(inputs):
            arrays |= {f"{i}:in:{key}": x for key, x in feeds.items()}
            arrays |= {f"{i}:out:{n:03}": y for n, y in enumerate(session.run(None, feeds))}
        for precision in ERROR_LIMIT:
            wanted: dict[str, Any] = {"precision": "fp16"} if precision == "float16" else {}
            optimized, _ = graphopt.optimize(model, target=target, **wanted)
            onnx.save(optimized, folder / f"{name}-{precision}.onnx")
            if precision == "float16" and not foreign:  # compared with PyTorch's float16
                half = ort.InferenceSession(optimized.SerializeToString(), options, providers=[CPU])
                for i, feeds in enumerate(inputs):
                    want = [arrays[key] for key in sorted(arrays) if key.startswith(f"{i}:out:")]
                    pairs = zip(half.run(None, feeds), want, strict=True)
                    errors = [relative_error(y, w) for y, w in pairs if np.issubdtype(w.dtype, np.floating)]
                    arrays[f"{i}:half"] = np.asarray(max(errors, default=0.0))
        # Written last: the existence of this file means that the others are complete.
        np.savez(folder / f"{name}.npz", **arrays)  # type: ignore[arg-type]
    except Exception as error:  # any package may fail to export: the model is left out
        return f"{type(error).__name__}: {(str(error).splitlines() or ['?'])[0][:160]}"
    return ""


@dataclass
class Model:
    name: str
    files: dict[str, Path]  # by precision
    inputs: list[Feeds]
    outputs: list[list[Array]]  # the exported model's, on the CPU
    half: list[float]  # error of the optimized float16 model on the CPU, for each input; nan: not measured

    @classmethod
    def read(cls, name: str, folder: Path) -> Model:
        arrays = dict(np.load(folder / f"{name}.npz"))
        inputs: list[Feeds] = []
        outputs: list[list[Array]] = []
        half: list[float] = []
        for i in range(len({key.split(":")[0] for key in arrays})):
            half.append(float(arrays.get(f"{i}:half", np.nan)))
            inputs.append({k.split(":", 2)[2]: x for k, x in arrays.items() if k.startswith(f"{i}:in:")})
            outputs.append([arrays[k] for k in sorted(arrays) if k.startswith(f"{i}:out:")])
        return cls(name, {p: folder / f"{name}-{p}.onnx" for p in ERROR_LIMIT}, inputs, outputs, half)

    def limit(self, precision: str, size: int) -> float:
        """Returns the limit of the error on the GPU, relative to the outputs' root mean square.

        With random weights, some networks magnify the rounding errors of float16 beyond ERROR_LIMIT. They do so on the
        CPU too, so the limit is at least four times the error of the CPU.
        """
        return max(ERROR_LIMIT[precision], 4 * self.half[size] if precision == "float16" else 0.0)

    @functools.cached_property
    def nothing(self) -> list[list[Array]]:
        """Contents of the outputs before a run on the device: NaN or 1, which remains in unwritten elements."""
        return [[np.full_like(y, np.nan if y.dtype.kind == "f" else 1) for y in outputs] for outputs in self.outputs]


def prepare_each(
    wanted: Sequence[str], exports: Path, folder: Path, target: str, spare: int = 0
) -> Iterator[tuple[str, bool]]:
    """Prepares models in parallel, and yields the name of each and whether it is prepared; prints the errors.

    A caller that stops early cancels the models that no process has begun.

    Args:
        wanted: the names; their order is the order of preparation.
        exports: the folder with the exported models.
        folder: the folder for the optimized models.
        target: the target of `graphopt.optimize`.
        spare: the number of cores left to the caller.
    """
    if not wanted:
        return
    spawn = multiprocessing.get_context("spawn")  # the caller may use a GPU, and must not be forked then
    processes = max(1, min((os.cpu_count() or 1) - spare, len(wanted)))
    workers = ProcessPoolExecutor(processes, spawn, _hide_gpus)
    try:
        tasks = {workers.submit(prepare, name, exports, folder, target): name for name in wanted}
        for task in as_completed(tasks):
            if why := task.result():
                print(f"left out: {tasks[task]}: {why}", flush=True)
            yield tasks[task], not why
    finally:
        workers.shutdown(cancel_futures=True)


def prepare_all(wanted: Sequence[str], exports: Path, folder: Path, target: str) -> list[Model]:
    """Returns the models that can be prepared, in the order of `wanted`, and prints the others."""
    made = dict(prepare_each(wanted, exports, folder, target))
    return [Model.read(name, folder) for name in wanted if made[name]]
