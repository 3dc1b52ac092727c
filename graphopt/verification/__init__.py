"""Compares the outputs of two models, BEFORE and AFTER a rewrite, with measured rounding errors as limits.

A case is one set of inputs. A draw is one run of BEFORE on one case with all values rounded at random (`noise.py`).
"""
