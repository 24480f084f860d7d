"""Embedders: text to vectors, in this process or through an OpenAI-compatible endpoint."""
