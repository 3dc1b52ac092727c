"""Models in PyTorch: those that scripts/export.py exports to ONNX, and the zoo in idiomatic PyTorch."""
