"""Targets: the nodes that each accepts, and the cost model that decides which rewrites are faster."""
