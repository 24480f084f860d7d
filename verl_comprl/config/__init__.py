"""The configuration of a run: typed settings, Hydra defaults, arms, and the checks at start."""
