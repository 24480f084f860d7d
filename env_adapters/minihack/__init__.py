"""MiniHack: navigation tasks in NetHack, as text."""
