"""The verl trainer: our layer over any V1 mode, the extractor's runtime, evaluation and checkpoints."""
