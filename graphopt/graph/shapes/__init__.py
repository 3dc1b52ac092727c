"""Inference of ranks, dimensions and elements of small tensors."""
