"""Serves optimized models with Triton, KServe, MLServer, LitServe, BentoML and Ray Serve.

`configs/` writes the files of an engine without importing it. `engines/` runs inside an engine: a thin layer around
`Served`, a session with checked requests and merged batches. A folder contains any number of models and versions,
NAME/VERSION/model.onnx, each with a `serving.json` (graphopt/serving/deployment.py).
"""
