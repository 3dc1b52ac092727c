"""Our models on servers that others wrote: Triton, KServe, MLServer, LitServe, BentoML, Ray Serve.

`configs/` writes the folder that an engine wants; it needs no engine. `engines/` is what runs inside one: a few lines
each around `Served`, which is a session with checked requests and merged batches. A folder holds any number of models
and versions, NAME/VERSION/model.onnx, each with a `serving.json` (graphopt/serving/deployment.py).
"""
