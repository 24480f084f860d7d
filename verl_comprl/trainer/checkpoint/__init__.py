"""Our part of a checkpoint, and the folders of all checkpoints of a run."""
