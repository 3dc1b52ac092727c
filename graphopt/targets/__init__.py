"""What each target may receive, and what pays on it."""
