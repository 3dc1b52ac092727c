"""What is known of ranks, dimensions and small tensors before a model runs."""
