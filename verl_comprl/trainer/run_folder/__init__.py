"""Files in the folder of a run, and the lock of it."""
