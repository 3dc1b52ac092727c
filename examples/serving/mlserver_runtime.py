"""MLServer with a session of graphopt, for models of numbers."""

from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceResponse
from mlserver.utils import get_model_uri

import graphopt


class Model(MLModel):
    """Any number of inputs and outputs."""

    async def load(self):
        self.session = graphopt.session(await get_model_uri(self.settings))
        return True

    async def predict(self, payload):
        feeds = {given.name: NumpyCodec.decode_input(given) for given in payload.inputs}
        names = [output.name for output in self.session.get_outputs()]
        outputs = zip(names, self.session.run(names, feeds), strict=True)
        return InferenceResponse(
            model_name=self.name, outputs=[NumpyCodec.encode_output(name, array) for name, array in outputs]
        )
