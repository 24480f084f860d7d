# FrozenLake: 4x4, not slippery. Not in the paper; the smallest environment.
task frozenlake 2320 128 frozenlake --max-turns 30
