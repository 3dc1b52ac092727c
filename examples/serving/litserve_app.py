"""LitServe with a session of graphopt: {"x": [[...]]} in, {"y": [[...]]} out."""

import sys

import litserve
import numpy as np

import graphopt


class Model(litserve.LitAPI):
    """A model with one input and one output, both with a batch axis."""

    def setup(self, device):
        self.session = graphopt.session(sys.argv[1])
        self.name = self.session.get_inputs()[0].name

    def decode_request(self, request):
        return np.asarray(request["x"], np.float32)

    def predict(self, x):
        return self.session.run(None, {self.name: x})[0]

    def encode_response(self, output):
        return {"y": output.tolist()}


if __name__ == "__main__":
    litserve.LitServer(Model(), accelerator="cpu", restart_workers=True).run(port=8000)
