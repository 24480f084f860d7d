"""FrozenLake: cross the ice without falling into a hole, as text."""
