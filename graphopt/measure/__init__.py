"""Times and memory of a model, and the tuning that rests on them."""
