"""Where two models differ: their nodes, the rewrite or the node that changes an output."""
