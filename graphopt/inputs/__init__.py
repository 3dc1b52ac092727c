"""The inputs of a model: declared inputs, the caller's data, and generated inputs for tests and timings."""
