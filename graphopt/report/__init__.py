"""What a run did and found, as data, tables and a page."""
