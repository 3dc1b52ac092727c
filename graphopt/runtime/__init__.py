"""ONNX Runtime sessions with our library, and the machine that they run on."""
