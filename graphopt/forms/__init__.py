"""Patterns shared by several passes: activations, affine maps, linear operators, row statistics."""
