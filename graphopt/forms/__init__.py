"""What several passes recognise and write: activations, affine maps, linear operators, statistics of rows."""
