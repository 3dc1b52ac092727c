"""Operators of ONNX: their arguments by opset, and their traits."""
