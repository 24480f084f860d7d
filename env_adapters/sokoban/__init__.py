"""Sokoban: push boxes onto targets in a small room, as text."""
