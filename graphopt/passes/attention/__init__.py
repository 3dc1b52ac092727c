"""Modules of the pass `fuse_attention`: they match an attention and reorder its steps."""
