# ALFWorld: the games in ALFWORLD_DATA, or generated ones.
task alfworld all all alfworld --max-turns 40
