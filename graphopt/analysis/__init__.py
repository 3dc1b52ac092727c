"""What can be known of a graph before it runs: dimensions, and the values of nodes whose inputs are constants."""
