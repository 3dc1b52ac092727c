"""The inference runtime for MLServer that `model-settings.json` names."""

from __future__ import annotations

import numpy as np
from mlserver import MLModel
from mlserver.codecs import NumpyCodec, StringCodec
from mlserver.errors import InferenceError
from mlserver.types import InferenceRequest, InferenceResponse
from mlserver.utils import get_model_uri

from graphopt.serving.batching import Batcher
from graphopt.serving.deployment import RequestError
from graphopt.serving.served import Served


class GraphoptRuntime(MLModel):  # type: ignore[misc]  # the engine has no types
    """Serves the folder of one model version in MLServer.

    `Batcher` merges requests instead of MLServer, so an invalid request fails alone.
    """

    async def load(self) -> bool:
        """Creates the session. The engine calls this in each worker and whenever a model is reloaded."""
        self._served = Served(await get_model_uri(self.settings))
        self._batcher = Batcher(self._served)
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        """Answers one request; raises `InferenceError` (400) if it does not fit the model."""
        try:
            feeds = {}
            for given in payload.inputs:
                if given.datatype == "BYTES":
                    text = np.empty(given.shape, object)
                    text.reshape(-1)[:] = StringCodec.decode_input(given)
                    feeds[given.name] = text
                else:
                    feeds[given.name] = np.ascontiguousarray(NumpyCodec.decode_input(given))
            outputs = await self._batcher.run(feeds)
        except (RequestError, ValueError, TypeError, OverflowError) as error:
            raise InferenceError(str(error)) from None
        wanted = [o.name for o in payload.outputs or []] or [*outputs]
        unknown = next((name for name in wanted if name not in outputs), None)
        if unknown is not None:
            raise InferenceError(f"{self.name} has no output '{unknown}'; its outputs are {', '.join(outputs)}")
        encode = {
            name: StringCodec.encode_output(name, outputs[name].reshape(-1).tolist())
            if outputs[name].dtype == object
            else NumpyCodec.encode_output(name, outputs[name])
            for name in wanted
        }
        for name, output in encode.items():
            output.shape = [*outputs[name].shape]
        return InferenceResponse(
            id=payload.id, model_name=self.name, model_version=self.version, outputs=[*encode.values()]
        )
