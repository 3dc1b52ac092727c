"""Runs a model for comparison, by default with all of the runtime's optimizations off.

At the runtime's default optimization level, and where integers may be divided by 0, a model runs in another process,
so that a crash of the runtime can be reported. One process serves all calls; after a crash the next call starts a new
process.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import math
import os
import pickle
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir

from graphopt.errors import GraphoptError, VerifyError, is_out_of_memory, runtime_message
from graphopt.graph import inference, writing
from graphopt.graph.traversal import external_tensors, graphs, is_external, tensor_array, tensor_bytes, tensor_dims
from graphopt.inputs.plan import Case
from graphopt.runtime.child import environment
from graphopt.runtime.custom_ops import cannot_load, custom_op_libraries, registered_custom_ops, session_options
from graphopt.runtime.discovery import CPU, import_onnxruntime
from graphopt.runtime.session_warnings import require_provider
from graphopt.runtime.sessions import configure

Outputs = list[Any]
# Tensors of at least this size get a separate memory mapping. glibc raises its own threshold up to 32 MiB. Freed
# tensors below the threshold remain in the heap between used blocks: up to 0.9 GiB in SAM's image encoder. Mappings
# take time: with a threshold of 8 MiB, ResNet-50 took 4 % longer.
MAPPED_BYTES = 10 << 20
# Bytes of free memory that are kept at the end of the heap; glibc's own choice is twice the threshold.
HEAP_SLACK = 64 << 20
# Parameters of mallopt, as glibc numbers them.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_PERTURB = -1, -3, -6
# Element types of the weights that a session takes as arrays.
_NUMPY_TYPES = frozenset(
    ir.DataType[name] for name in "DOUBLE FLOAT FLOAT16 INT8 INT16 INT32 INT64 UINT8 UINT16 UINT32 UINT64".split()
)
# Weights in external files are read only if their total is at most this many bytes.
MAX_WEIGHTS_READ = 1_500_000_000
# Weights of at least this many bytes are passed to a session outside of the model's message; this saves the time to
# write and read them.
LARGE = 1 << 16


@dataclass(frozen=True)
class Mode:
    """The configuration of a session.

    Attributes:
        library: whether our kernels run our nodes, where `graphopt.configure` registers them. Must be True if
            `provider` is not the CPU.
        provider: the first provider; the CPU runs the nodes that it does not support.
        optimized: whether the runtime's optimizations are on, the runtime's default.
        in_half: whether the model is a copy by `with_float16_rounding`. Without it the CPU may keep float16 results in
            float32.
    """

    library: bool = False
    provider: str = CPU
    optimized: bool = False
    in_half: bool = False

    @property
    def key(self) -> tuple[bool, str, bool]:
        """The attributes of the mode that rows of a report contain."""
        return self.library, self.provider, self.optimized


BODIES = Mode()  # by function bodies, on the CPU


def open_session(
    model: Path | onnx.ModelProto | ir.Model, mode: Mode = BODIES, *, threads: int = 0, reuse: bool = True
) -> Any:
    """Opens a session.

    Args:
        model: the model; an ir.Model loses its inferred types and shapes.
        mode: the configuration.
        threads: number of threads of a node; 0 for the runtime's choice.
        reuse: whether buffers of freed tensors are kept for later tensors of the same shape. Without reuse, SAM's image
            encoder needs 0.9 GiB less memory and takes 1.5 times as long, and ResNet-50 takes 10 % longer.

    Raises:
        VerifyError: the runtime refuses the model; the message is the runtime's.
        GraphoptError: the provider is missing, or the runtime falls back to another one.
    """
    _map_large_tensors()
    ort = import_onnxruntime()
    options = session_options()
    if not mode.optimized:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    # An arena would keep the memory of the largest input set as long as the session is open.
    options.enable_cpu_mem_arena = options.enable_mem_pattern = False
    options.enable_mem_reuse = reuse
    options.intra_op_num_threads = threads
    # Waiting threads that spin took a third of verify's CPU seconds on a busy machine.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    if isinstance(model, ir.Model):
        # The options only refer to the weights, which must live until the session exists.
        model, _weights = _message(model, options)
    requested = list(dict.fromkeys([mode.provider, CPU]))
    # The device must run its kernels even where the CPU is estimated to be faster.
    on_device = mode.provider != CPU
    providers = configure(options, requested, require_device=on_device, model=model) if mode.library else [CPU]
    source = model.SerializeToString() if isinstance(model, onnx.ModelProto) else str(model)
    try:
        session = ort.InferenceSession(source, options, providers=providers)
    except Exception as error:  # the runtime's exception classes share no public base
        name = "the model" if isinstance(model, onnx.ModelProto) else str(model)
        raise VerifyError(cannot_load(name, error)) from None
    require_provider(session, mode.provider)
    return session


def _message(model: ir.Model, options: Any) -> tuple[onnx.ModelProto, list[Any]]:
    """Returns a model without inferred types, and its large weights, which are referenced by the session options."""
    folder = next((str(tensor.base_dir) for tensor in external_tensors(graphs(model)) if tensor.base_dir), "")
    if folder:
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", folder)
    inference.forget(model)
    with large_weights_outside(model, folder) as large:
        make = import_onnxruntime().OrtValue.ortvalue_from_numpy
        values = [make(np.ascontiguousarray(tensor_array(tensor))) for tensor in large.values()]
        if large:
            options.add_external_initializers(list(large), values)
        return writing.to_message(model), values


def weights_in_files(model: ir.Model) -> int:
    """Returns the bytes of the weights in external files."""
    return sum(tensor.nbytes for tensor in external_tensors(graphs(model)))


@contextmanager
def large_weights_outside(model: ir.Model, folder: str = "") -> Iterator[dict[str, ir.TensorProtocol]]:
    """Replaces the large initializers of the main graph by references to external files; restores them on exit.

    Each file has the name of its initializer, and is not written. Initializers in files of `folder`, and of types that
    numpy lacks, are kept.
    """
    large: dict[str, ir.TensorProtocol] = {}
    initializers = model.graph.initializers
    for name, value in initializers.items():
        tensor = value.const_value
        if tensor is None or value.is_graph_input() or tensor_bytes(tensor) < LARGE or tensor.dtype not in _NUMPY_TYPES:
            continue
        if not (is_external(tensor) and str(tensor.base_dir) == folder):
            shape, size = ir.Shape(tensor_dims(tensor)), tensor_bytes(tensor)
            large[name] = tensor
            value.const_value = ir.ExternalTensor(name, 0, size, tensor.dtype, shape=shape, name=name, base_dir="")
    try:
        yield large
    finally:
        for name, tensor in large.items():
            initializers[name].const_value = tensor


def _mallopt(parameter: int, value: int) -> None:
    """Sets a parameter of glibc's allocator; does nothing with other C libraries."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(parameter, value)


@functools.cache
def _map_large_tensors() -> None:
    """Makes glibc return large tensors to the system when they are freed."""
    _mallopt(M_TRIM_THRESHOLD, HEAP_SLACK)
    _mallopt(M_MMAP_THRESHOLD, MAPPED_BYTES)


@contextmanager
def new_memory_filled(byte: int) -> Iterator[None]:
    """Makes glibc fill the memory that it allocates with a byte; 0 leaves it as it is.

    Sessions have no arena, so this includes new tensors, except those with a separate memory mapping (MAPPED_BYTES).
    """
    _mallopt(M_PERTURB, byte)
    try:
        yield
    finally:
        _mallopt(M_PERTURB, 0)


def run_cases(
    model: Path | onnx.ModelProto | ir.Model, cases: Iterable[Case], mode: Mode = BODIES
) -> dict[str, Outputs | str]:
    """Runs input sets in a new session; returns outputs, or the runtime's message, by name of the set."""
    session = open_session(model, mode)
    return {case.name: run_case(session, case) for case in cases}


def run_case(session: Any, case: Case, *, half_io: bool = False) -> Outputs | str:
    """Runs one input set; returns the outputs, or the runtime's message if it refuses the inputs.

    Args:
        session: an open session.
        case: the input set.
        half_io: whether float32 inputs are converted to the model's float16, and float16 outputs to float32.
    """
    narrow = {i.name for i in session.get_inputs() if half_io and i.type == "tensor(float16)"}
    try:
        feeds = {n: np.float16(a) if n in narrow and a.dtype == np.float32 else a for n, a in case.feeds.items()}
        outputs = _run(session, feeds)
    except Exception as error:  # the runtime's exception classes share no public base
        return runtime_message(error)
    return [_widened(o) for o in outputs] if half_io else outputs


def require_memory(outputs: Outputs | str) -> None:
    """Raises an error if the machine had too little memory for a run, because this is no difference of the models.

    Raises:
        MemoryError: the runtime's message reports too little memory.
    """
    if isinstance(outputs, str) and is_out_of_memory(outputs):
        raise MemoryError(outputs)


def _widened(output: Any) -> Any:
    return output.astype(np.float32) if isinstance(output, np.ndarray) and output.dtype == np.float16 else output


def _run(session: Any, feeds: dict[str, Any]) -> Outputs:
    values = [*session.get_inputs(), *session.get_outputs()]
    if not any(v.type == "tensor(bfloat16)" for v in values):
        outputs: Outputs = session.run(None, feeds)
        return outputs
    # The Python interface has no bfloat16 arrays; it takes and returns OrtValues with that type.
    make = import_onnxruntime().OrtValue
    given = {
        name: make.ortvalue_from_numpy_with_onnx_type(array.view(np.uint16), onnx.TensorProto.BFLOAT16)
        if array.dtype == ml_dtypes.bfloat16
        else make.ortvalue_from_numpy(array)
        for name, array in feeds.items()
    }
    return [_array(value) for value in session.run_with_ort_values(None, given)]


def _array(value: Any) -> Any:
    if value.data_type() != "tensor(bfloat16)":
        return value.numpy()
    shape = tuple(value.shape())
    count = math.prod(shape)
    words = (ctypes.c_uint16 * count).from_address(value.data_ptr()) if count else ()
    return np.array(words, np.uint16).view(ml_dtypes.bfloat16).reshape(shape)


# -- in another process ------------------------------------------------------------------------------------------------

_process: subprocess.Popen[bytes] | None = None


class Crash(str):
    """The message about a crash of the runtime."""


def run_isolated(
    model: Path | onnx.ModelProto, cases: Sequence[Case], mode: Mode, *, half_io: bool = False, threads: int = 0
) -> dict[str, Outputs | str]:
    """Runs input sets on the CPU in another process.

    Arguments are those of `open_session` and `run_case`.

    Returns:
        Outputs, or a message, by name of the set. After a crash, the `Crash` is also the message of the remaining sets.
    """
    refused, results = _in_other_process(model, cases, mode, half_io, threads)
    return results if refused is None else {case.name: refused for case in cases}


def require_loads_isolated(model: Path | onnx.ModelProto, mode: Mode) -> None:
    """Requires that the runtime can load a model in another process.

    Raises:
        VerifyError: the runtime refuses the model.
    """
    refused, _ = _in_other_process(model, (), mode, half_io=False, threads=0)
    if refused is not None:
        raise VerifyError(refused)


def _in_other_process(
    model: Path | onnx.ModelProto, cases: Sequence[Case], mode: Mode, half_io: bool, threads: int
) -> tuple[str | None, dict[str, Outputs | str]]:
    """Runs input sets in the other process; returns the runtime's message if it refuses the model, and the results."""
    with tempfile.TemporaryDirectory() as folder:
        path = model if isinstance(model, Path) else Path(folder) / "model.onnx"
        if isinstance(model, onnx.ModelProto):
            path.write_bytes(model.SerializeToString())
        request = (str(path.resolve()), list(cases), mode, half_io, threads, custom_op_libraries())
        process = _running()
        assert process.stdin is not None and process.stdout is not None
        results: dict[str, Outputs | str] = {}
        try:
            pickle.dump(request, process.stdin)
            process.stdin.flush()
            refused = pickle.load(process.stdout)
            for case in cases if refused is None else ():
                results[case.name] = pickle.load(process.stdout)
        except (OSError, EOFError, pickle.UnpicklingError):
            crash = Crash(
                f"the runtime {_end_of(_stop(process))}{' at its default optimization level' * mode.optimized}"
            )
            return (None if cases else crash), {case.name: results.get(case.name, crash) for case in cases}
    if refused is None:
        return None, results
    level = "at the runtime's default optimization level: " * mode.optimized
    return level + (refused if path == model else refused.replace(str(path.resolve()), "the model")), results


def _end_of(code: int) -> str:
    """Returns a phrase such as "ends with code 1", which describes how a process with this exit code ended."""
    if code >= 0:
        return f"ends with code {code}"
    cause = ", for example by an integer division by 0" * (code == -signal.SIGFPE)
    return f"crashes (signal {signal.Signals(-code).name}{cause})"


def _running() -> subprocess.Popen[bytes]:
    global _process
    if _process is None or _process.poll() is not None:
        command = [sys.executable, "-c", "from graphopt.verification.run import serve; serve()"]
        pipe, env = subprocess.PIPE, environment()
        _process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, env=env)
        atexit.register(_stop, _process)
    return _process


def _stop(process: subprocess.Popen[bytes]) -> int:
    """Ends the process, which may have crashed during a request; returns its exit code."""
    assert process.stdin is not None and process.stdout is not None
    with suppress(BrokenPipeError):
        process.stdin.close()
    code = process.wait()
    process.stdout.close()
    return code


def serve() -> None:
    """Runs in the other process: reads requests from stdin and writes the results to the original stdout."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # output of libraries must not mix with the results
    while True:
        try:
            path, cases, mode, half_io, threads, custom_ops = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        with registered_custom_ops(custom_ops):
            for answer in _answers(Path(path), cases, mode, half_io, threads):
                pickle.dump(answer, answers)
                answers.flush()


def _answers(path: Path, cases: Sequence[Case], mode: Mode, half_io: bool, threads: int) -> Iterator[Any]:
    """Yields the message if the runtime refuses the model; otherwise None and the outputs of each input set."""
    try:
        session = open_session(path, mode, threads=threads)
    except GraphoptError as error:
        yield str(error).removeprefix(f"{path} ")
        return
    yield None
    for case in cases:
        yield run_case(session, case, half_io=half_io)
