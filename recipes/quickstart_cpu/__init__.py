"""The quickstart: two tiny models, built and warm-started here, that learn together on a CPU."""
