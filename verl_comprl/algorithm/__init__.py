"""The maths of the method: pure functions on arrays. Imports torch and numpy only."""
