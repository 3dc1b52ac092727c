"""Whether two models compute the same, and where they part."""
