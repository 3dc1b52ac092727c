"""The model: reading and writing, the editor of the passes, and shape inference."""
