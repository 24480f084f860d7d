# FrozenLake: 4x4, not slippery; the goal is six moves away. All in two CPU cores' reach.
task lake 64 8 frozenlake --max-turns 8
