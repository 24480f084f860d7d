"""Terminal output of a run."""
