"""Watchdog of a run: which of its processes have died, what waits for what, and where each stands."""
