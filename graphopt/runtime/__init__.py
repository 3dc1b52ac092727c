"""ONNX Runtime sessions with our library, and the devices of this machine."""
