"""The parts of the pass `fuse_attention`: what it reads around the two products, and the node that it writes."""
