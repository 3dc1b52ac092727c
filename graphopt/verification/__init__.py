"""Whether two models compute the same, judged by how far rounding alone moves the first."""
