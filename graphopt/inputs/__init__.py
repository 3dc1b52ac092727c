"""Inputs of a model: what it declares, what the caller gives, and what is made to test and time it."""
