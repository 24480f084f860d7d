"""Hydra defaults of the training run, and their validation at start."""
