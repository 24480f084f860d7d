"""A page about a run on the terminal, from the run's files alone."""
