"""Quickstart: trains two small models, built and warm-started here, on a CPU."""
