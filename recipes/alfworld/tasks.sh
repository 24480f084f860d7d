# ALFWorld: the games in ALFWORLD_DATA, or generated ones.
task alfworld 1466 134 alfworld --max-turns 40
