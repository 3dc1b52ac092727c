"""The plugin provider in real sessions of stock ONNX Runtime, on host memory in place of a GPU."""
