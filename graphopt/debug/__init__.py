"""Finds where models differ: their nodes, the rewrite that changes an output, the first value of two providers."""
