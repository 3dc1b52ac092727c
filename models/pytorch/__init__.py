"""Models in PyTorch: what scripts/export.py writes as ONNX files, and the zoo as people write it in PyTorch."""
