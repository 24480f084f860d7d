"""The trainer: a mixin over verl's V1 trainers, the extractor's engine and learner, evaluation and checkpoints."""
