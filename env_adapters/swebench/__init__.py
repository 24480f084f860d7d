"""SWE-bench: repair a repository in a sandbox, so that its failing tests pass."""
