"""Finds where models differ: nodes, the first wrong rewrite, the first value that differs between two providers."""
