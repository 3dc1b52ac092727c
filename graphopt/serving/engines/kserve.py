"""KServe: a custom predictor, `python -m graphopt.serving.engines.kserve FOLDER`."""

from __future__ import annotations

import argparse
import uuid
from pathlib import Path
from typing import Any

import kserve
import numpy as np
from kserve.errors import InvalidInput
from kserve.model_server import parser

from graphopt.serving.batching import Batcher
from graphopt.serving.deployment import RequestError, versions
from graphopt.serving.served import Served


class Model(kserve.Model):  # type: ignore[misc]  # the engine has no types
    """The newest version of one model. KServe itself has no versions of models, only revisions of a service."""

    def __init__(self, name: str, folder: Path) -> None:
        super().__init__(name)
        self.folder = folder
        self.ready = False

    def load(self) -> bool:
        """Opens the session."""
        self._served = Served(self.folder)
        self._batcher: Batcher | None = None
        self.ready = True
        return True

    async def predict(self, payload: Any, headers: Any = None, response_headers: Any = None) -> Any:
        """Answers a request of the Open Inference Protocol v2; raises `InvalidInput` (400) if it is not valid."""
        if not isinstance(payload, kserve.InferRequest):
            raise InvalidInput("this model supports only the Open Inference Protocol v2")
        if self._batcher is None:
            self._batcher = Batcher(self._served)
        try:
            feeds = {given.name: np.ascontiguousarray(given.as_numpy()) for given in payload.inputs}
            outputs = await self._batcher.run(feeds)
        except (RequestError, ValueError, TypeError, OverflowError) as error:
            raise InvalidInput(str(error)) from None
        wants_binary = {output.name: bool(output.binary_data) for output in payload.request_outputs or []}
        answers = []
        for tensor in self._served.deployment.outputs:
            output = kserve.InferOutput(tensor.name, [*outputs[tensor.name].shape], tensor.datatype)
            binary = wants_binary.get(tensor.name, False) if wants_binary else payload.use_binary_outputs
            output.set_data_from_numpy(outputs[tensor.name], binary_data=binary)
            answers.append(output)
        return kserve.InferResponse(
            payload.id or str(uuid.uuid4()),
            self.name,
            answers,
            model_version=str(self._served.deployment.version),
            use_binary_outputs=payload.use_binary_outputs,
            requested_outputs=payload.request_outputs,
        )


def main() -> None:
    """Serves the newest version of every model of a folder, with the options of `kserve.ModelServer`."""
    arguments = argparse.ArgumentParser(parents=[parser])
    arguments.add_argument("folder", type=Path)
    folder = arguments.parse_args().folder
    models = [Model(name, folders[max(folders)]) for name, folders in versions(folder).items()]
    for model in models:
        model.load()
    kserve.ModelServer().start(models)


if __name__ == "__main__":
    main()
