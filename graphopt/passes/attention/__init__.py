"""The parts of the pass `fuse_attention`: matching, and the order of the steps."""
