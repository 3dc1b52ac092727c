"""Runs a model the way `verify` compares models: all of the runtime's own optimizations off, one session at a time.

At the runtime's default optimization level a model runs in a process of its own: a crash there is a finding. One such
process serves all calls; after a crash the next call starts another.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import math
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir

from graphopt.errors import GraphoptError, VerifyError, is_out_of_memory, runtime_says
from graphopt.graph import inference, writing
from graphopt.graph.editor import Editor
from graphopt.graph.traversal import external_tensors, graphs, is_external, tensor_array, tensor_bytes, tensor_dims
from graphopt.inputs.filling import Feeds
from graphopt.inputs.plan import Case
from graphopt.runtime.child import environment
from graphopt.runtime.custom_ops import cannot_load, custom_op_libraries, registered_custom_ops, session_options
from graphopt.runtime.discovery import CPU, import_onnxruntime
from graphopt.runtime.session_warnings import require_provider
from graphopt.runtime.sessions import configure
from graphopt.targets.target import Target

Model = Path | onnx.ModelProto | ir.Model
Outputs = list[Any]
# glibc raises its threshold for mapping a block by itself to 32 MiB. Freed tensors below it stay in the heap, between
# blocks in use: up to 0.9 GiB in SAM's image encoder. Mapping is not free: from 8 MiB on, it cost ResNet-50 4 %.
MAPPED_BYTES = 10 << 20
# The heap keeps this much free memory at its end; glibc sets twice the threshold if it chooses itself.
HEAP_SLACK = 64 << 20
# Parameters of mallopt, as glibc numbers them.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
# Element types of the weights that a session takes as arrays.
_OF_NUMPY = frozenset(
    getattr(ir.DataType, name)
    for name in "DOUBLE FLOAT FLOAT16 INT8 INT16 INT32 INT64 UINT8 UINT16 UINT32 UINT64".split()
)
# Weights in files that are larger together are not read.
MAX_WEIGHTS_READ = 1_500_000_000
# Weights of so many bytes come to a session beside the message, where they would be written and read again.
LARGE = 1 << 16


def open_session(
    model: Model,
    *,
    library: bool,
    provider: str = CPU,
    optimized: bool = False,
    threads: int = 0,
    reuse: bool = True,
) -> Any:
    """A session with all of the runtime's optimizations off.

    Args:
        model: what to run. An ir.Model loses what was inferred.
        library: with our kernels; a provider other than the CPU's decides for itself (`graphopt.configure`).
        provider: what this one cannot run goes to the CPU.
        optimized: with the runtime's optimizations, as it has them by default.
        threads: how many compute a node; 0 leaves that to the runtime.
        reuse: the buffer of a freed tensor is kept for a later tensor of the same shape. Without that, SAM's image
            encoder takes 0.9 GiB less and half as much time more, and ResNet-50 10 % more.

    Raises:
        VerifyError: the runtime refuses the model; the message is the runtime's.
        GraphoptError: there is no such device here, or the runtime falls back to another provider.
    """
    _map_large_tensors()
    ort = import_onnxruntime()
    options = session_options()
    if not optimized:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    # Memory goes back after each tensor: an arena would keep the largest case's for as long as the session is open.
    options.enable_cpu_mem_arena = False
    options.enable_mem_pattern = False
    options.enable_mem_reuse = reuse
    options.intra_op_num_threads = threads
    # Threads that wait for one another by looking all the time took a third of verify's CPU seconds on a busy machine.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    if isinstance(model, ir.Model):
        folder = next((str(tensor.base_dir) for tensor in external_tensors(graphs(model)) if tensor.base_dir), "")
        if folder:
            options.add_session_config_entry("session.model_external_initializers_file_folder_path", folder)
        inference.forget(model)
        with large_weights_outside(model, folder) as large:
            arrays = (np.ascontiguousarray(tensor_array(tensor)) for tensor in large.values())
            values = [ort.OrtValue.ortvalue_from_numpy(array) for array in arrays]
            if large:
                options.add_external_initializers(list(large), values)
            model = writing.to_message(model)
    providers = configure(options, [CPU] if provider == CPU else [provider, CPU], model=model) if library else [CPU]
    source = model.SerializeToString() if isinstance(model, onnx.ModelProto) else str(model)
    try:
        session = ort.InferenceSession(source, options, providers=providers)
    except Exception as error:  # the runtime's exception classes share no public base
        name = "the model" if isinstance(model, onnx.ModelProto) else str(model)
        raise VerifyError(cannot_load(name, error)) from None
    require_provider(session, provider)
    return session


def weights_in_files(model: ir.Model) -> int:
    """Bytes of weights that lie in files."""
    return sum(tensor.nbytes for tensor in external_tensors(graphs(model)))


@contextmanager
def large_weights_outside(model: ir.Model, folder: str = "") -> Iterator[dict[str, ir.TensorProtocol]]:
    """Takes large initializers of the main graph, of types that numpy has, out of a model, and puts them back.

    Those in files of `folder` stay. In the place of the others are references to files of their names.
    """
    large: dict[str, ir.TensorProtocol] = {}
    initializers = model.graph.initializers
    for name, value in initializers.items():
        tensor = value.const_value
        if tensor is None or value.is_graph_input() or tensor_bytes(tensor) < LARGE or tensor.dtype not in _OF_NUMPY:
            continue
        if not (is_external(tensor) and str(tensor.base_dir) == folder):
            shape = ir.Shape(tensor_dims(tensor))
            large[name] = tensor
            value.const_value = ir.ExternalTensor(
                name, 0, tensor_bytes(tensor), tensor.dtype, shape=shape, name=name, base_dir=""
            )
    try:
        yield large
    finally:
        for name, tensor in large.items():
            initializers[name].const_value = tensor


def with_outputs(model: ir.Model, names: Sequence[str]) -> ir.Model:
    """A copy with these values of the main graph as outputs.

    Raises:
        VerifyError: there is no such value.
    """
    editor = Editor(inference.clone(model), Target("cpu"))
    made = {value.name: value for node in editor.model.graph for value in node.outputs}
    if unknown := set(names) - made.keys():
        raise VerifyError(f"the model has no value '{min(unknown)}'")
    editor.set_outputs([made[name] for name in names])
    return editor.model


@functools.cache
def _map_large_tensors() -> None:
    """Makes glibc return large tensors to the system when they are freed; does nothing with other C libraries."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_TRIM_THRESHOLD, HEAP_SLACK)
        mallopt(M_MMAP_THRESHOLD, MAPPED_BYTES)


def run_cases(
    model: Model,
    cases: Iterable[Case],
    *,
    library: bool,
    provider: str = CPU,
    half_io: bool = False,
    optimized: bool = False,
) -> dict[str, Outputs | str]:
    """Case name -> outputs, or the runtime's message where it refuses the inputs.

    Args:
        model: what to run.
        cases: the inputs.
        library: as for `open_session`.
        provider: likewise.
        half_io: float32 inputs become float16 where the model takes that, and float16 outputs float32.
        optimized: as for `open_session`.
    """
    session = open_session(model, library=library, provider=provider, optimized=optimized)
    return {case.name: run_case(session, case, half_io=half_io) for case in cases}


def run_case(session: Any, case: Case, *, half_io: bool = False) -> Outputs | str:
    """One case in an open session, as `run_cases` does it."""
    narrow = {i.name for i in session.get_inputs() if half_io and i.type == "tensor(float16)"}
    try:
        feeds = {n: np.float16(a) if n in narrow and a.dtype == np.float32 else a for n, a in case.feeds.items()}
        outputs = _run(session, feeds)
    except Exception as error:  # as above
        return runtime_says(error)
    return [_widened(o) for o in outputs] if half_io else outputs


def require_memory(outputs: Outputs | str) -> None:
    """A side that this machine has no memory for is not different.

    Raises:
        MemoryError: that is what the runtime's message says.
    """
    if isinstance(outputs, str) and is_out_of_memory(outputs):
        raise MemoryError(outputs)


def _widened(output: Any) -> Any:
    return output.astype(np.float32) if isinstance(output, np.ndarray) and output.dtype == np.float16 else output


def _run(session: Any, feeds: Feeds) -> Outputs:
    values = [*session.get_inputs(), *session.get_outputs()]
    if not any(v.type == "tensor(bfloat16)" for v in values):
        outputs: Outputs = session.run(None, feeds)
        return outputs
    # The Python interface takes and returns no bfloat16 arrays, but values that are told their type.
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


# -- at the default optimization level ---------------------------------------------------------------------------------

_process: subprocess.Popen[bytes] | None = None


def run_optimized(
    model: Path | onnx.ModelProto, cases: Sequence[Case], *, library: bool, half_io: bool = False, threads: int = 0
) -> dict[str, Outputs | str]:
    """Runs cases as `run_cases` does, with the runtime's optimizations on.

    A crash is the message of its case and of the cases after it. `threads` compute a node; 0 leaves their number to the
    runtime.
    """
    refused, results = _in_own_process(model, cases, library, half_io, threads)
    return results if refused is None else {case.name: refused for case in cases}


def require_loads_optimized(model: Path | onnx.ModelProto, *, library: bool) -> None:
    """Requires that the runtime can load a model with its optimizations on.

    Raises:
        VerifyError: the runtime refuses the model.
    """
    refused, _ = _in_own_process(model, (), library, half_io=False, threads=0)
    if refused is not None:
        raise VerifyError(refused)


def _in_own_process(
    model: Path | onnx.ModelProto, cases: Sequence[Case], library: bool, half_io: bool, threads: int
) -> tuple[str | None, dict[str, Outputs | str]]:
    """Runs cases in a process that a crash may end; returns why the runtime refuses the model, if so, and results."""
    with tempfile.TemporaryDirectory() as folder:
        if isinstance(model, Path):
            path = model
        else:
            path = Path(folder) / "model.onnx"
            path.write_bytes(model.SerializeToString())
        request = (str(path.resolve()), list(cases), library, half_io, threads, custom_op_libraries())
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
            code = _stop(process)
            how = f"crashes (signal {-code})" if code < 0 else f"ends with code {code}"
            message = f"the runtime {how} at its default optimization level"
            return (None if cases else message), {case.name: results.get(case.name, message) for case in cases}
    return refused and f"at the runtime's default optimization level: {refused}", results


def _running() -> subprocess.Popen[bytes]:
    global _process
    if _process is None or _process.poll() is not None:
        _process = subprocess.Popen(
            [sys.executable, "-c", "from graphopt.verification.run import serve; serve()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment(),
        )
        atexit.register(_stop, _process)
    return _process


def _stop(process: subprocess.Popen[bytes]) -> int:
    """Ends the process, which may have died with a request half written; its exit code."""
    assert process.stdin is not None and process.stdout is not None
    with suppress(BrokenPipeError):
        process.stdin.close()
    code = process.wait()
    process.stdout.close()
    return code


def serve() -> None:
    """The other process: requests on stdin, answers on what was stdout."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what libraries print is no answer
    requests: IO[bytes] = sys.stdin.buffer
    while True:
        try:
            path, cases, library, half_io, threads, custom_ops = pickle.load(requests)
        except EOFError:
            return
        with registered_custom_ops(custom_ops):
            for answer in _answers(Path(path), cases, library, half_io, threads):
                pickle.dump(answer, answers)
                answers.flush()


def _answers(path: Path, cases: Sequence[Case], library: bool, half_io: bool, threads: int) -> Iterator[Any]:
    """Why there is no session, or None and the outputs of each case."""
    try:
        session = open_session(path, library=library, optimized=True, threads=threads)
    except GraphoptError as error:
        yield str(error).removeprefix(f"{path} ")
        return
    yield None
    for case in cases:
        yield run_case(session, case, half_io=half_io)
