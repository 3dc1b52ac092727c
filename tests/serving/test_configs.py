"""Output of serve-config: files parsed with Triton's protobuf message, the model run in-process, refusals, notes."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from graphopt.errors import GraphoptError, OptionError
from graphopt.runtime.discovery import library_path
from graphopt.serving.configs import ENGINES
from graphopt.serving.deployment import Deployment, RequestError, Tensor, read_deployment, versions
from graphopt.serving.protocol import JSON_LENGTH, decode, encode, split
from graphopt.serving.served import Served
from graphopt.serving.write import write
from tests.conftest import CommandResult
from tests.hip.case import signed
from tests.rewriting import model_from_text
from tests.serving.zoo import feeds_of, run, save


@pytest.fixture(scope="module")
def resnet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save("resnet18", tmp_path_factory.mktemp("model") / "resnet.onnx")


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save("bert", tmp_path_factory.mktemp("model") / "bert.onnx")


def model_config() -> Any:
    """Returns Triton's ModelConfig message as NVIDIA publishes it in tritonclient."""
    found = importlib.util.find_spec("tritonclient")
    if found is None or not found.submodule_search_locations:
        pytest.skip("tritonclient is not installed: pip install '.[serving]'")
    path = Path(found.submodule_search_locations[0]) / "grpc" / "model_config_pb2.py"
    spec = importlib.util.spec_from_file_location("model_config_pb2", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("backend", ["onnxruntime", "python"])
def test_triton_reads_its_config(backend: str, resnet: Path, bert: Path, tmp_path: Path) -> None:
    from google.protobuf import text_format

    messages = model_config()
    write(resnet, tmp_path, "triton", name="resnet", instances=3, threads=2)
    write(bert, tmp_path, "triton", name="bert", max_batch=1)
    config = messages.ModelConfig()
    text_format.Parse((tmp_path / backend / "resnet" / "config.pbtxt").read_text(), config)
    assert (config.name, config.backend, config.max_batch_size) == ("resnet", backend, 8)
    assert [(i.name, i.data_type, [*i.dims]) for i in config.input] == [("input", messages.TYPE_FP32, [3, 32, 32])]
    assert [(o.name, [*o.dims]) for o in config.output] == [("logits", [10])]
    assert config.dynamic_batching.max_queue_delay_microseconds == 2000
    assert [(g.count, g.kind) for g in config.instance_group] == [(3, messages.ModelInstanceGroup.KIND_CPU)]
    assert [(w.batch_size, [*w.inputs["input"].dims]) for w in config.model_warmup] == [
        (1, [3, 32, 32]),
        (8, [3, 32, 32]),
    ]
    libraries = [*config.model_operations.op_library_filename]
    if backend == "onnxruntime":
        assert [Path(path).read_bytes() for path in libraries] == [library_path().read_bytes()]
        assert config.parameters["intra_op_thread_count"].string_value == "2"
    else:
        assert not libraries
    text_format.Parse((tmp_path / backend / "bert" / "config.pbtxt").read_text(), other := messages.ModelConfig())
    assert other.max_batch_size == 0
    assert {i.name: [*i.dims] for i in other.input}["input_ids"] == [-1, -1]
    assert not other.HasField("dynamic_batching")


OPSETS = [helper.make_opsetid("", 17)]


class _Tensor:
    def __init__(self, name: str, array: Any) -> None:
        self._name, self._array = name, array

    def name(self) -> str:
        return self._name

    def as_numpy(self) -> Any:
        return self._array


class _Request:
    def __init__(self, feeds: dict[str, Any], wanted: list[str]) -> None:
        self.feeds, self.wanted = feeds, wanted

    def requested_output_names(self) -> list[str]:
        return self.wanted


def test_triton_python_model(bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls the class in model.py in the same way as Triton's Python backend.

    `triton_python_backend_utils` exists only in a running server; the stand-in here follows its documentation.
    """

    class Response:
        def __init__(self, output_tensors: Any = (), error: Any = None) -> None:
            self.tensors, self.error = output_tensors, error

    class Error:
        INVALID_ARG = 4

        def __init__(self, message: str, code: int) -> None:
            self.message, self.code = message, code

    backend = ModuleType("triton_python_backend_utils")
    backend.Tensor, backend.InferenceResponse, backend.TritonError = _Tensor, Response, Error  # type: ignore[attr-defined]  # a module made here
    backend.get_input_tensor_by_name = lambda request, name: (  # type: ignore[attr-defined]  # likewise
        _Tensor(name, request.feeds[name]) if name in request.feeds else None
    )
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", backend)
    write(bert, tmp_path, "triton", name="bert", threads=1)
    folder = tmp_path / "python" / "bert"
    spec = importlib.util.spec_from_file_location("model", folder / "1" / "model.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    model = module.TritonPythonModel()
    model.initialize({"model_repository": str(folder), "model_version": "1", "model_instance_name": "bert_0_1"})
    good = [feeds_of("bert", 1 + n % 3, n) for n in range(5)]
    bad = {"input_ids": np.zeros((1, 4), np.int64)}
    requests = [_Request(feeds, ["pooler_output"]) for feeds in [*good[:2], bad, *good[2:]]]
    responses = model.execute(requests)
    refused = responses.pop(2)
    assert (refused.error.code, "attention_mask" in refused.error.message) == (4, True)
    for feeds, response in zip(good, responses, strict=True):
        assert [tensor.name() for tensor in response.tensors] == ["pooler_output"]
        wanted = run(bert, feeds)["pooler_output"]
        np.testing.assert_allclose(response.tensors[0].as_numpy(), wanted, atol=1e-4 * float(np.abs(wanted).max()))


def matmul_over_rows(path: Path, ends_with_infinity: bool = False) -> Path:
    """Writes Y = X^T X X^T, which has the shapes of a batch although each row depends on all rows."""
    nodes = [
        helper.make_node("Transpose", ["x"], ["t"], perm=[1, 0]),
        helper.make_node("MatMul", ["x", "t"], ["g"]),
        helper.make_node("MatMul", ["g", "x"], ["p"]),
        helper.make_node("Add", ["p", "offsets"], ["y"]),
    ]
    offsets = np.array([0, 0, 0, -np.inf if ends_with_infinity else 0], np.float32)
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 4]) for name in "xy"]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:], [numpy_helper.from_array(offsets, "offsets")])
    onnx.save(helper.make_model(graph, ir_version=8, opset_imports=OPSETS), path)
    return path


def test_rows_with_infinite_elements_are_compared(tmp_path: Path) -> None:
    deployment, notes = write(matmul_over_rows(tmp_path / "m.onnx", True), tmp_path / "out", "litserve")
    assert deployment.max_batch == 1
    assert any("depends on other rows" in note for note in notes)


def test_rows_that_depend_on_each_other_are_not_merged(tmp_path: Path) -> None:
    deployment, notes = write(matmul_over_rows(tmp_path / "m.onnx"), tmp_path / "out", "litserve")
    assert deployment.max_batch == 1
    assert any("depends on other rows" in note for note in notes)
    with pytest.raises(OptionError, match="depends on other rows"):
        write(tmp_path / "m.onnx", tmp_path / "out", "litserve", max_batch=4)
    served = Served(tmp_path / "out" / "m" / "1")
    one = np.eye(3, 4, dtype=np.float32)
    for answer in served.run_many([{"x": one}, {"x": one}]):
        assert isinstance(answer, dict)
        np.testing.assert_array_equal(answer["y"], one)


def test_requests_are_split_into_batches_and_bad_ones_fail_alone(resnet: Path, tmp_path: Path) -> None:
    write(resnet, tmp_path, "litserve", name="resnet", max_batch=4)
    served = Served(tmp_path / "resnet" / "1")
    good = [feeds_of("resnet18", rows, rows) for rows in (1, 3, 2, 4, 1, 5)]
    bad = {"input": np.zeros((1, 3, 32, 31), np.float32)}
    answers = served.run_many([*good[:3], bad, *good[3:]])
    assert isinstance(answers.pop(3), RequestError)
    for feeds, answer in zip(good, answers, strict=True):
        assert isinstance(answer, dict)
        wanted = run(resnet, feeds)["logits"]
        np.testing.assert_allclose(answer["logits"], wanted, atol=1e-4 * float(np.abs(wanted).max()))


def test_requests_with_a_scalar_input_are_answered(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(model_from_text("g (float s, float[N] x) => (float[N] y) { y = Mul(s, x) }"), path)
    deployment, _ = write(path, tmp_path / "out", "litserve")
    assert deployment.max_batch == 1
    served = Served(tmp_path / "out" / "m" / "1")
    requests = [{"s": np.array(factor, np.float32), "x": np.ones(factor, np.float32)} for factor in (2, 3)]
    for factor, answer in zip((2, 3), served.run_many(requests), strict=True):
        assert isinstance(answer, dict)
        np.testing.assert_array_equal(answer["y"], np.full(factor, factor, np.float32))


def test_a_request_without_memory_is_no_mistake_of_the_client(tmp_path: Path) -> None:
    """A request for 2^50 elements fails alone; the other requests of the batch are answered."""
    path = tmp_path / "m.onnx"
    onnx.save(model_from_text("g (int64[1] n) => (float[M] y) { y = ConstantOfShape(n) }"), path)
    write(path, tmp_path / "out", "litserve")
    served = Served(tmp_path / "out" / "m" / "1")
    small, giant, wrong = ({"n": np.array([size])} for size in (3, 2**50, -1))
    first, second, third, last = served.run_many([small, giant, wrong, small])
    assert isinstance(first, dict) and isinstance(last, dict)
    assert isinstance(second, MemoryError) and isinstance(third, RequestError)
    with pytest.raises(MemoryError, match="m: ONNX Runtime"):
        served.run(giant)


def test_litserve_has_nothing_to_serve(tmp_path: Path) -> None:
    pytest.importorskip("litserve", reason="litserve is not installed: pip install '.[serving]'")
    from graphopt.serving.engines.litserve import server

    with pytest.raises(GraphoptError, match="contains no model"):
        server(tmp_path)


@pytest.mark.parametrize("engine", sorted(ENGINES))
def test_command(engine: str, resnet: Path, tmp_path: Path, graphopt_command: Callable[..., CommandResult]) -> None:
    """Two versions coexist in one folder, and each engine's files are valid in their format."""
    for version in (1, 2):
        done = graphopt_command(
            *("serve-config", resnet, tmp_path, "--for", engine, "--name", "resnet", "--version", version)
        )
        assert done.exit_code == 0, done.stderr
        assert "start it with:" in done.stdout
    places = [tmp_path / "python", tmp_path / "onnxruntime"] if engine == "triton" else [tmp_path]
    for place in places:
        assert [*versions(place)["resnet"]] == [1, 2]
        assert read_deployment(place / "resnet" / "2").version == 2
    for file in [*tmp_path.rglob("*.json"), *tmp_path.rglob("serve.yaml"), *tmp_path.rglob("inference_*.yaml")]:
        json.loads(file.read_text())
    for file in tmp_path.rglob("*.py"):
        compile(file.read_text(), str(file), "exec")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        *((text, "its content is not a JSON object") for text in ("null", "1", '"format"', "[]", '["format"]')),
        ("{", "Expecting property name"),
        ("{}", "it has no 'format'"),
        ('{"format": 2}', "written by another version of graphopt"),
        ('{"format": 1}', "it has no 'inputs'"),
        ('{"format": 1, "inputs": null}', "it has another structure"),
        ('{"format": 1, "inputs": [1], "outputs": []}', "it has another structure"),
        ('{"format": 1, "inputs": [{"name": "x"}], "outputs": []}', "it has no 'datatype'"),
        ('{"format": 1, "inputs": [], "outputs": [], "devices": [], "warm_up": []}', "it has another structure"),
        ("\udc80", "can't decode byte 0x80"),
    ],
)
def test_unusable_settings(text: str, why: str, tmp_path: Path) -> None:
    path = tmp_path / "serving.json"
    path.write_text(text, errors="surrogateescape")
    with pytest.raises(GraphoptError) as caught:
        read_deployment(tmp_path)
    assert str(caught.value).startswith(f"{path}: cannot be used: ") and why in str(caught.value)
    assert str(caught.value).endswith("; `graphopt serve-config` writes it")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--for", "torchserve"), "choose one of triton, kserve, mlserver, litserve, bentoml, ray"),
        (("--for", "ray", "--version", "0"), "a number of at least 1"),
        (("--for", "ray", "--name", "../x"), "use letters"),
        (("--for", "ray", "--dim", "sequence=8"), "the model has batch"),
    ],
)
def test_wrong_options(
    arguments: tuple[str, ...],
    message: str,
    resnet: Path,
    tmp_path: Path,
    graphopt_command: Callable[..., CommandResult],
) -> None:
    done = graphopt_command("serve-config", resnet, tmp_path / "out", *arguments)
    assert done.exit_code == 5
    assert message in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("x", "message"),
    [
        ("int4[2]", "has type INT4, which servers do not support; cast it in the model"),
        ("float[]", "has no rank in the model, but servers need one; declare its shape"),
        ("seq(float[2])", "is a sequence, but engines support tensors only; cut the model there"),
        ("optional(float[2])", "is an optional value, but engines support tensors only; cut the model there"),
    ],
)
def test_unsupported_inputs_of_servers(x: str, message: str, tmp_path: Path) -> None:
    y = x.replace("int4", "float")
    op = "Cast <to = 1> (x)" if y != x else "Identity(x)"
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 21]> g ({x} x) => ({y} y) {{ y = {op} }}')
    path = tmp_path / "in.onnx"
    onnx.save(model, path)
    with pytest.raises(OptionError) as caught:
        write(path, tmp_path / "served", "kserve")
    assert str(caught.value) == f"{path}: 'x' {message}"
    assert not (tmp_path / "served").exists()


def test_strings_are_neither_merged_nor_warmed_up(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (string[N] x) => (string[N] y) { y = Identity(x) }'
    )
    onnx.save(model, tmp_path / "in.onnx")
    deployment, notes = write(tmp_path / "in.onnx", tmp_path / "served", "kserve")
    assert deployment.max_batch == 1 and not deployment.warm_up
    assert any("not merged: input 'x' is a string tensor" in note for note in notes), notes
    _, notes = write(tmp_path / "in.onnx", tmp_path / "served", "kserve", sizes={"N": 2})
    assert any("the model is not warmed up: input 'x' is a string tensor" in note for note in notes), notes


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"datatype": "INT8", "data": [1, 2, 300]}, "outside the range"),
        ({"datatype": "INT8", "data": [1.5, 2, 3]}, "not int8 values"),
        ({"datatype": "FP32", "data": ["a", "b", "c"]}, "not float32 values"),
        ({"datatype": "FP32", "data": [1, 2]}, "do not fill"),
        ({"datatype": "BF16", "data": [1, 2, 3]}, "datatype BF16"),
        ({"datatype": ["FP32"], "data": [1, 2, 3]}, "datatype"),
        ({"datatype": "FP32", "data": [1, 2, 3], "shape": [-3]}, "not a list of sizes"),
        ({"datatype": "FP32", "data": [1, 2, 3], "name": ["x"]}, "instead of a string"),
    ],
)
def test_invalid_data_of_requests_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        decode({"inputs": [{"name": "x", "shape": [3]} | given]})


@pytest.mark.parametrize("asked", ["y", 1, ["y"], [{}], [{"name": ["y"]}]])
def test_invalid_lists_of_outputs_are_refused(asked: Any) -> None:
    tensors = (Tensor("y", "FP32", (-1,)),)
    with pytest.raises(RequestError, match="must be a list of objects"):
        encode(Deployment("m", 1, tensors, tensors), {"y": np.zeros(1, np.float32)}, {"outputs": asked})


@pytest.mark.parametrize("element", [np.nan, np.inf, -np.inf])
def test_outputs_that_json_cannot_represent(element: float) -> None:
    deployment = Deployment("m", 1, (), (Tensor("y", "FP32", (2,)),))
    outputs = {"y": np.array([1, element], np.float32)}
    with pytest.raises(RequestError, match=r"output 'y' has NaN or infinite elements.*; request binary data"):
        encode(deployment, outputs, {})
    answer, tail = encode(deployment, outputs, {"outputs": [{"name": "y", "parameters": {"binary_data": True}}]})
    assert answer["outputs"][0]["parameters"] == {"binary_data_size": 8}
    np.testing.assert_array_equal(np.frombuffer(tail, np.float32), outputs["y"])


def test_numbers_of_every_type() -> None:
    for datatype, data in {
        "BOOL": [True, False],
        "UINT64": [0, 2**64 - 1],
        "FP16": [1, 2.5],
        "BYTES": ["a", "ü"],
    }.items():
        (array,) = decode({"inputs": [{"name": "x", "shape": [2], "datatype": datatype, "data": data}]}).values()
        assert array.tolist() == data


@pytest.mark.parametrize("binary", [True, False])
def test_requests_and_answers_of_tritonclient(binary: bool) -> None:
    """We decode tritonclient's requests and it decodes our answers: numbers and strings, as JSON and as binary data."""
    http = pytest.importorskip("tritonclient.http")
    rng = np.random.default_rng(0)
    arrays: dict[str, Any] = {
        "a": signed(rng, 2, 3),
        "b": rng.integers(-5, 5, (2, 1)),
        "c": np.array([[True], [False]]),
        "d": np.array([["ü", ""]] * 2, object),
    }
    if binary:  # the client has no JSON encoding of float16
        arrays["h"] = signed(rng, 2, 2).astype(np.float16)
    datatypes = {"a": "FP32", "b": "INT64", "c": "BOOL", "d": "BYTES", "h": "FP16"}
    given = [http.InferInput(name, [*array.shape], datatypes[name]) for name, array in arrays.items()]
    for tensor, array in zip(given, arrays.values()):
        tensor.set_data_from_numpy(array, binary_data=binary)
    wanted = [http.InferRequestedOutput(name, binary_data=binary) for name in arrays]
    body, length = http.InferenceServerClient.generate_request_body(given, outputs=wanted)
    asked, behind = split(body, None if length is None else str(length))
    feeds = decode(asked, behind)
    tensors = tuple(Tensor(name, datatypes[name], (-1, -1)) for name in arrays)
    answer, behind = encode(Deployment("m", 1, tensors, tensors), feeds, asked)
    assert bool(behind) == binary
    text = json.dumps(answer).encode()
    got = http.InferenceServerClient.parse_response_body(text + behind, header_length=len(text) if binary else None)
    for name, array in arrays.items():
        read = got.as_numpy(name)
        texts = [v.decode() if isinstance(v, bytes) else v for v in read.reshape(-1)] if name == "d" else None
        assert read.shape == array.shape
        assert texts == array.reshape(-1).tolist() if texts else np.array_equal(read, array)


@pytest.mark.parametrize(
    ("size", "behind", "message"),
    [
        (12, bytes(13), "1 bytes follow"),
        (8, bytes(8), "do not fill"),
        (-12, bytes(12), "instead of a number of bytes"),
        (True, bytes(12), "instead of a number of bytes"),
    ],
)
def test_bytes_that_do_not_fit(size: Any, behind: bytes, message: str) -> None:
    given = {"name": "x", "shape": [3], "datatype": "FP32", "parameters": {"binary_data_size": size}}
    with pytest.raises(RequestError, match=message):
        decode({"inputs": [given]}, behind)
    with pytest.raises(RequestError, match="not valid strings"):
        decode({"inputs": [given | {"datatype": "BYTES", "parameters": {"binary_data_size": 5}}]}, b"\2\0\0\0x")
    with pytest.raises(RequestError, match="and 'data' or"):
        decode({"inputs": [given | {"data": [1, 2, 3], "parameters": {"binary_data_size": 12}}]}, bytes(12))
    for length in ("5", "-1", "x"):
        with pytest.raises(RequestError, match=JSON_LENGTH):
            split(b"{}", length)


EXAMPLES = Path(__file__).resolve().parent.parent.parent / "examples" / "serving"


def test_example_for_mlserver(resnet: Path) -> None:
    pytest.importorskip("mlserver")
    import asyncio

    from mlserver.codecs import NumpyCodec
    from mlserver.settings import ModelSettings
    from mlserver.types import InferenceRequest

    spec = importlib.util.spec_from_file_location("mlserver_runtime", EXAMPLES / "mlserver_runtime.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    settings = json.loads((EXAMPLES / "model-settings.json").read_text()) | {"implementation": module.Model}
    settings["parameters"] = {"uri": str(resnet)}
    model = module.Model(ModelSettings(**settings))
    feeds = feeds_of("resnet18", 2, 0)
    request = InferenceRequest(inputs=[NumpyCodec.encode_input(name, array) for name, array in feeds.items()])

    async def answer() -> Any:
        assert await model.load()
        return await model.predict(request)

    (output,) = asyncio.run(answer()).outputs
    np.testing.assert_array_equal(NumpyCodec.decode_output(output), run(resnet, feeds)["logits"])


def test_example_for_triton() -> None:
    from google.protobuf import text_format

    config = model_config().ModelConfig()
    text_format.Parse((EXAMPLES / "triton_config.pbtxt").read_text(), config)
    assert config.model_operations.op_library_filename == ["/models/libgraphopt.so"]
