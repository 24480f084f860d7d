"""SWE-bench: repair a repository so that its failing tests pass."""
