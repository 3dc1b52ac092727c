"""BentoML with a session of graphopt, two workers: POST /predict, {"x": [[...]]} in, [[...]] out."""

import bentoml
import numpy as np

import graphopt


@bentoml.service(workers=2)
class Model:
    """A model with one input and one output."""

    def __init__(self):
        self.session = graphopt.session("model.onnx")
        self.name = self.session.get_inputs()[0].name

    @bentoml.api
    def predict(self, x: list) -> list:
        """One request."""
        return self.session.run(None, {self.name: np.asarray(x, np.float32)})[0].tolist()
