"""``comprl bank``: look into an experience bank, move it, and change it by hand."""
