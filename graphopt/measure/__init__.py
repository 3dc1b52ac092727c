"""Measures the time and memory of models, and tunes rewrites by measured times."""
