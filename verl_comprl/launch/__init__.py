"""A Ray cluster that lasts one run, on the nodes of torchrun: ``torchrun … -m verl_comprl.launch key=value …``.

Every node runs the same command. The first starts Ray's head and then the training, the others join it; all that they
know of one another goes through torchrun's own store. When the training ends, every node stops what it has started, and
all return the training's exit code. Other Ray clusters on these machines are not touched. See docs/launch.md.
"""
