"""Ray Serve with a session of graphopt, two replicas: {"x": [[...]]} in, {"y": [[...]]} out."""

import numpy as np
from ray import serve

import graphopt


@serve.deployment(num_replicas=2)
class Model:
    """A model with one input and one output."""

    def __init__(self, path):
        self.session = graphopt.session(path)
        self.name = self.session.get_inputs()[0].name

    async def __call__(self, request):
        body = await request.json()
        return {"y": self.session.run(None, {self.name: np.asarray(body["x"], np.float32)})[0].tolist()}


app = Model.bind("model.onnx")
