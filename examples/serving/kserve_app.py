"""KServe with a session of graphopt: a predictor that speaks the Open Inference Protocol v2."""

import uuid

import kserve

import graphopt


class Model(kserve.Model):
    """Any number of inputs and outputs."""

    def load(self):
        self.session = graphopt.session("model.onnx")
        self.ready = True
        return self.ready

    def predict(self, payload, headers=None, response_headers=None):
        feeds = {given.name: given.as_numpy() for given in payload.inputs}
        answers = []
        for output, array in zip(self.session.get_outputs(), self.session.run(None, feeds), strict=True):
            answers.append(kserve.InferOutput(output.name, [*array.shape], "FP32"))
            answers[-1].set_data_from_numpy(array, binary_data=False)
        return kserve.InferResponse(payload.id or str(uuid.uuid4()), self.name, answers)


if __name__ == "__main__":
    model = Model("model")
    model.load()
    kserve.ModelServer().start([model])
