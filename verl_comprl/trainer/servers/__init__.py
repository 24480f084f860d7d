"""Servers of both models: requests to them, and how they pause for new weights."""
