"""ONNX Runtime sessions with our library, and the machine on which they run."""
