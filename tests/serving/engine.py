"""An inference server as a process, and a third-party client of the Open Inference Protocol (tritonclient)."""

from __future__ import annotations

import importlib.util
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Feeds = dict[str, Array]
ROOT = Path(__file__).resolve().parent.parent.parent
JSON_ALONE = {"mlserver", "litserve"}  # the other engines also support the protocol's binary form
SECONDS_TO_START = 900  # on a machine with other load; 10 otherwise
PATIENCE = 240  # below the time limit of a test; a longer wait is a hang even on a busy machine
# Ray ends a process that does not answer within seconds; on a busy machine a process needs a minute to start.
PATIENT_RAY = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_register_timeout_seconds": "600",
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "300",
    "RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S": "300",
    "RAY_prestart_worker_first_driver": "0",
    "RAY_worker_niceness": "0",
}


def missing(*modules: str) -> str:
    """Returns the first module that is not installed, or ""."""
    return next((m for m in modules if importlib.util.find_spec(m) is None), "")


# PyPI has Triton only in nvidia-pytriton: the server and its Python backend.
TRITON = Path(
    (getattr(importlib.util.find_spec("pytriton"), "submodule_search_locations", None) or [""])[0], "tritonserver"
)


def free_port() -> int:
    """Returns a port that the system does not hand out for the next minute, but that a server can bind explicitly.

    The listening side closes a connection first, which keeps the port in TIME_WAIT; SO_REUSEADDR can bind a port in
    that state.
    """
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = listening.getsockname()
        with socket.create_connection(address) as client:
            listening.accept()[0].close()
            client.recv(1)
    return int(address[1])


def put_python_backend(place: Path) -> None:
    """Links Triton's Python backend of nvidia-pytriton into a folder, with the stub that is built for this Python."""
    place.mkdir(parents=True)
    stub = "triton_python_backend_stub"
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    for path in [*(TRITON / "backends" / "python").glob("*.*"), TRITON / "python_backend_stubs" / version / stub]:
        (place / path.name).symlink_to(path)


def family(process: subprocess.Popen[bytes]) -> list[int]:
    """Returns all processes of a server except the first: all descendants, and all members of its session."""
    parents, found = {}, set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            parents[int(stat.parent.name)] = int(fields[1])
            if int(fields[3]) == process.pid:
                found.add(int(stat.parent.name))
    while more := {pid for pid, parent in parents.items() if parent in found | {process.pid}} - found:
        found |= more
    return sorted(found - {process.pid})


def end(process: subprocess.Popen[bytes], polite: signal.Signals) -> None:
    """Ends all processes of a server that was started in a separate session."""
    if process.poll() is None:
        process.send_signal(polite)
        with suppress(subprocess.TimeoutExpired):
            process.wait(3)
    for pid in [*family(process), process.pid]:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()


class Engine:
    """A server over a folder written by serve-config; a context manager that ends all its processes."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.folder, self.port = name, folder, free_port()
        self.models = folder / "python" if name == "triton" else folder
        self.url = f"127.0.0.1:{self.port}"
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (as long as the server)

    def command(self) -> tuple[list[str], dict[str, str]]:
        """Returns the command line and its environment."""
        python, folder, port = sys.executable, str(self.folder), str(self.port)
        # Equivalent of `serve run serve.yaml`. Each step has a fixed limit of 30 or 60 s, which a busy machine can
        # exceed, so it is repeated.
        ray = f"""
import json, sys, time, ray
from ray.serve._private.api import serve_start
from ray.serve.schema import ServeDeploySchema
http = {{"host": "127.0.0.1", "port": {port}}}
config = json.load(open({folder!r} + "/serve.yaml")) | {{"http_options": http}}
for step in (
    lambda: ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, ignore_reinit_error=True),
    lambda: serve_start(http_options=http),
    lambda: serve_start(http_options=http).deploy_apps(ServeDeploySchema(**config), _blocking=True),
    lambda: time.sleep(1e6),
):
    while True:
        try:
            step()
            break
        except Exception as error:
            print(error, file=sys.stderr, flush=True)
"""
        commands: Mapping[str, list[str]] = {
            "mlserver": [python, "-c", "from mlserver.cli import main; main()", "start", folder],
            "litserve": [
                python,
                "-c",
                "from graphopt.serving.engines.litserve import server\n"
                "if __name__ == '__main__':\n"
                f"    server({folder!r}).run(host='127.0.0.1', port={port}, log_level='error')",
            ],
            "kserve": [
                *(python, "-m", "graphopt.serving.engines.kserve", folder, "--http_port", port),
                *("--enable_grpc", "false"),
            ],
            "bentoml": [
                *(python, "-m", "bentoml", "serve", "service:Service", "--working-dir", folder),
                *("--host", "127.0.0.1", "--port", port),
            ],
            "ray": [python, "-c", ray],
            "triton": [
                *(str(TRITON / "bin" / "tritonserver"), "--model-repository", str(self.models)),
                *("--backend-directory", str(self.folder / "backends"), "--model-control-mode", "explicit"),
                *("--load-model", "*", "--http-address", "127.0.0.1", "--http-port", port),
                *("--allow-grpc", "false", "--allow-metrics", "false"),
            ],
        }
        settings = {
            "MLSERVER_HOST": "127.0.0.1",
            "MLSERVER_HTTP_PORT": port,
            "MLSERVER_GRPC_PORT": str(free_port()),
            "MLSERVER_METRICS_PORT": str(free_port()),
            "BENTOML_DO_NOT_TRACK": "True",
            "PATH": os.pathsep.join([str(Path(python).parent), os.environ["PATH"]]),  # Triton searches its Python here
        } | PATIENT_RAY
        paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        return commands[self.name], os.environ | settings | {"PYTHONPATH": paths}

    def __enter__(self) -> Engine:
        command, environment = self.command()
        if self.name == "triton":
            put_python_backend(self.folder / "backends" / "python")
        self.process = subprocess.Popen(
            command,
            cwd=self.folder,
            env=environment,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        deadline = time.monotonic() + SECONDS_TO_START
        while not self.ready():
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.__exit__(None, None, None)
                raise AssertionError(f"{self.name} did not start:\n{self.log()}")
            time.sleep(0.1)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        end(self.process, signal.SIGINT if self.name == "ray" else signal.SIGTERM)

    def log(self) -> str:
        """Returns the server's output so far."""
        self._log.seek(0)
        return self._log.read().decode(errors="replace")

    def ready(self) -> bool:
        """Whether all models are ready."""
        client = self.client()
        try:
            return all(client.is_model_ready(p.parent.name) for p in self.models.glob("*/1"))
        except Exception:  # clients raise various exceptions before the server listens
            return False
        finally:
            client.close()

    def client(self) -> Any:
        """Returns a new client, which only one thread may use."""
        import tritonclient.http

        return tritonclient.http.InferenceServerClient(self.url, connection_timeout=PATIENCE, network_timeout=PATIENCE)

    def workers(self) -> list[int]:
        """Returns the processes that run models: those that have mapped our library."""
        found = []
        for pid in [*family(self.process), self.process.pid]:
            try:
                if "libgraphopt.so" in Path(f"/proc/{pid}/maps").read_text():
                    found.append(pid)
            except OSError:
                continue
        return found

    def cpu_seconds(self) -> float:
        """Returns the CPU seconds of all living processes of the server."""
        ticks = 0
        for pid in [*family(self.process), self.process.pid]:
            with suppress(OSError):
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")


def ask(client: Any, model: str, feeds: Mapping[str, Array], version: str = "", *, binary: bool = False) -> Feeds:
    """Sends one request, as JSON in both directions or in the protocol's binary form."""
    import tritonclient.http as http
    from tritonclient.utils import np_to_triton_dtype

    inputs = []
    for name, array in feeds.items():
        given = http.InferInput(name, [*array.shape], np_to_triton_dtype(array.dtype))
        given.set_data_from_numpy(array, binary_data=binary)
        inputs.append(given)
    # Without this header KServe treats a body as the protocol's binary form.
    headers = None if binary else {"Content-Type": "application/json"}
    answer = client.infer(model, inputs, version, headers=headers)
    return {output["name"]: answer.as_numpy(output["name"]) for output in answer.get_response()["outputs"]}


@dataclass
class Load:
    """The results of many clients.

    Attributes:
        right: number of answers that equal those of `session.run`.
        wrong: descriptions of all other answers.
        errors: the client's message for each failed request.
        seconds: latency of each right answer.
    """

    right: int = 0
    wrong: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)


@dataclass
class Question:
    """A request and its expected answers by `session.run`; several are possible while a model is being replaced."""

    model: str
    feeds: Feeds
    answers: Sequence[Feeds]
    version: str = ""

    def difference(self, got: Feeds) -> str:
        """Returns "" if the answer matches an expected one; a batch may sum in a different order than single rows."""
        for wanted in self.answers:
            if got.keys() == wanted.keys() and all(_alike(got[name], wanted[name]) for name in wanted):
                return ""
        return f"{self.model}: another answer than session.run's"


def _alike(got: Array, wanted: Array) -> bool:
    if got.shape != wanted.shape or got.dtype != wanted.dtype:
        return False
    scale = float(np.sqrt(np.mean(np.square(wanted, dtype=np.float64))))
    return bool(np.abs(got.astype(np.float64) - wanted).max() <= 1e-4 * scale)


class WaitsForEverError(AssertionError):
    """A client got no answer within the caller's patience."""


def load(
    engine: Engine,
    questions: Sequence[Question],
    *,
    clients: int = 16,
    requests: int = 10,
    meanwhile: Callable[[], object] = lambda: None,
    attempts: int = 1,
    binary: bool = False,
    patience: float = PATIENCE,
) -> Load:
    """Runs several clients at once; each sends `requests` questions one after the other.

    Args:
        engine: the server.
        questions: clients choose from these at random.
        clients: number of threads.
        requests: number of questions for each client.
        meanwhile: called once a quarter of the requests are answered.
        attempts: number of attempts for one question; each failure is counted.
        binary: as for `ask`.
        patience: time limit for the whole load, in seconds.

    Raises:
        WaitsForEverError: the time limit is exceeded.
    """
    result, lock, quarter, over = Load(), threading.Lock(), threading.Event(), threading.Event()

    def work(number: int) -> None:
        client, rng = engine.client(), np.random.default_rng(number)
        for _ in range(requests):
            question = questions[int(rng.integers(len(questions)))]
            for attempt in range(attempts):
                if over.is_set():
                    return
                begin = time.perf_counter()
                try:
                    got = ask(client, question.model, question.feeds, question.version, binary=binary)
                    difference = question.difference(got)
                except Exception as error:  # any exception of the client reaches its user
                    with lock:
                        result.errors.append(str(error))
                    time.sleep(0.05 * (attempt + 1))
                    continue
                with lock:
                    if difference:
                        result.wrong.append(difference)
                    else:
                        result.right += 1
                        result.seconds.append(time.perf_counter() - begin)
                break
            with lock:
                if result.right + len(result.wrong) + len(result.errors) >= clients * requests // 4:
                    quarter.set()
        client.close()

    threads = [threading.Thread(target=work, args=(n,), daemon=True) for n in range(clients)]
    for thread in threads:
        thread.start()
    quarter.wait(patience)
    meanwhile()
    deadline = time.monotonic() + patience
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    over.set()
    if any(thread.is_alive() for thread in threads):
        raise WaitsForEverError(f"{engine.name}: a client waits for ever")
    return result


def wait_for(what: Callable[[], bool], seconds: float = PATIENCE) -> bool:
    """Polls until the condition holds; returns False on timeout."""
    deadline = time.monotonic() + seconds
    while not what():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.2)
    return True
