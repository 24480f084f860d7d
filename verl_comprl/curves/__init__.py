"""Metrics of runs over their steps, read from the folders of the runs, which may be running."""
