"""Compares the outputs of two models, with the measured rounding errors of the first one as limits."""
