"""The extractor's engine, server, loss and learner in a run."""
