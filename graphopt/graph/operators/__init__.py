"""ONNX's operators: arguments in each opset, traits, rules of shape inference, and evaluation."""
