"""Embedders turn text into vectors, in this process or through an OpenAI-compatible endpoint."""
