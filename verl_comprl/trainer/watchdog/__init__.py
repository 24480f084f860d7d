"""Where the processes of a run stand, which of them have died, and what waits for what."""
