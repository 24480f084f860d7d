"""What a user sees of a run."""
